"""report.html: one self-contained page about an output folder.

Everything that comes from a corpus, a path or a config is escaped: text is hostile input.
"""

from collections.abc import Iterable, Sequence
from html import escape

from dataprep.files import atomic_path
from dataprep.ledger import Ledger
from dataprep.manifest import Manifest
from dataprep.storage import Place

NAME = "report.html"

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}th,td{padding:.25rem .6rem;text-align:right}
th{border-bottom:2px solid #888;font-weight:600}td{border-bottom:1px solid #ddd}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:1rem}.tile{background:#f3f5f7;border-radius:.5rem;
padding:.6rem 1rem;min-width:8rem}.tile b{display:block;font-size:1.4rem}
.bar{background:#4a7fb5;height:.8rem;border-radius:.2rem}td.wide{width:40%}
code{background:#f3f5f7;padding:0 .25rem}
"""


def write_report(manifest: Manifest, folder: Place) -> None:
    """Writes folder/report.html. A finishing step for `corpus.build`."""
    with atomic_path(folder / NAME) as tmp:
        tmp.write_text(render(manifest), encoding="utf-8")


def render(manifest: Manifest) -> str:
    """The page as HTML."""
    ledger = Ledger.from_json(manifest.ledger)
    slots = max(ledger.total("slots.total"), 1)
    tiles = [
        ("documents read", f"{ledger.total('documents.read'):,}"),
        ("documents kept", f"{ledger.total('documents.kept'):,}"),
        ("tokens", f"{ledger.total('tokens.placed'):,}"),
        ("rows", f"{sum(manifest.rows(split) for split in manifest.splits):,}"),
        ("padding", f"{ledger.total('slots.padding') / slots:.2%}"),
        ("targets", f"{ledger.total('targets.trained') / slots:.2%} of slots"),
    ]
    parts = [
        "<h1>Corpus report</h1>",
        f"<p>{_settings(manifest)}</p>",
        '<div class="tiles">',
        *(f'<div class="tile"><b>{escape(v)}</b>{escape(k)}</div>' for k, v in tiles),
        "</div>",
        *(f"<p><b>Note:</b> {escape(note)}</p>" for note in manifest.notes),
        "<h2>Sources</h2>",
        _table(("source", "read", "removed", "kept", "tokens"), _sources(ledger)),
        "<h2>Removed documents, by stage and rule</h2>",
        _removed(ledger),
        "<h2>Other counts</h2>",
        _table(("count", "n"), ((k, f"{n:,}") for k, n in ledger.below("notes.").items())),
        "<h2>Shards</h2>",
        _table(("shard", "rows", "tokens", "bytes", "SHA-256"), _shards(manifest)),
        "<h2>Inputs</h2>",
        _table(("file", "source", "records", "bytes"), _inputs(manifest)),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Corpus report</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _settings(manifest: Manifest) -> str:
    tok = manifest.tokenizer
    isolated = "isolated" if manifest.isolate_documents else "not isolated"
    versions = ", ".join(f"{k} {v}" for k, v in manifest.versions.items())
    return (
        f"Rows of <code>{manifest.seq_length}</code> tokens, documents {isolated}; tokenizer "
        f"<code>{escape(tok.path)}</code> ({escape(tok.kind)}, {tok.vocab_size:,} ids); data set "
        f"<code>{manifest.fingerprint[:16]}</code>; {escape(versions)}"
    )


def _sources(ledger: Ledger) -> Iterable[Sequence[str]]:
    for source in ledger.sources():
        if source:  # "" counts rows, which mix sources
            own = {name: n for (s, name), n in ledger.counts.items() if s == source}
            removed = sum(n for k, n in own.items() if k.startswith("documents.removed."))
            kept = own.get("documents.kept", 0)
            tokens = own.get("tokens.tokenized", 0) + own.get("tokens.repeated", 0)
            tokens -= sum(n for k, n in own.items() if k.startswith("tokens.dropped."))
            yield (
                source,
                *(f"{n:,}" for n in (own.get("documents.read", 0), removed, kept, tokens)),
            )


def _removed(ledger: Ledger) -> str:
    removed = ledger.below("documents.removed.")
    if not removed:
        return "<p>None.</p>"
    read, most = max(ledger.total("documents.read"), 1), max(removed.values())
    rows = "".join(
        f"<tr><td>{escape(rule)}</td><td>{n:,}</td><td>{n / read:.2%}</td>"
        f'<td class="wide"><div class="bar" style="width:{100 * n / most:.1f}%"></div></td></tr>'
        for rule, n in removed.items()
    )
    return f"<table><tr><th>rule</th><th>documents</th><th>of read</th><th></th></tr>{rows}</table>"


def _shards(manifest: Manifest) -> Iterable[Sequence[str]]:
    for shards in manifest.splits.values():
        for s in shards:
            yield s.path, f"{s.rows:,}", f"{s.tokens:,}", f"{s.bytes:,}", s.sha256[:16]


def _inputs(manifest: Manifest) -> Iterable[Sequence[str]]:
    for file in manifest.inputs:
        yield file["path"], file["source"], f"{file['rows']:,}", f"{file['bytes']:,}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{''.join(f'<th>{escape(h)}</th>' for h in head)}</tr>{body}</table>"
