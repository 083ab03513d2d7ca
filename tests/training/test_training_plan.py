"""The memory ledger, costs and the search: literal numbers, then what holds for all layouts."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from pipelines.plan import PRESETS, PlanConfig
from training.config import TrainConfig
from training.costs import GB, Hardware, micro_batch_flops, step_seconds, traffic
from training.ledger import States, activations, layer_activations, ledger, whole_model
from training.mesh import Mesh
from training.plan import MOST_STAGES, Plan, meshes, obstacle, plan
from training.sections import Lora, ModelConfig, Parallel, Precision, Recompute
from training.shapes import layer_shapes, local_shape, parameter_shapes

# embedding 21 x 16 = 336; a layer 16 + (256 + 128 + 128 + 256) + 16 + 3 x 384 = 1952; norm 16
VOCAB, S = 21, 8
WHOLE = 336 + 2 * 1952 + 16


@pytest.fixture
def config(tiny_model: ModelConfig) -> TrainConfig:
    return TrainConfig("data", "run", tiny_model, batch_size=3)


def held(config: TrainConfig, mesh: Mesh | None = None, **parallel: Any) -> States:
    config = replace(config, parallel=replace(config.parallel, **parallel))
    return ledger(config, VOCAB, S, mesh or Mesh())


def test_the_usual_count() -> None:
    assert whole_model(7e9) == (14e9, 14e9, 84e9)
    assert whole_model(65e9) == (130e9, 130e9, 780e9)
    assert sum(whole_model(65e9)) / 32 == 32.5e9


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("1B", 1_235_814_400),
        ("3B", 3_212_749_824),
        ("7B", 6_738_415_616),
        ("8B", 8_030_261_248),
        ("13B", 13_015_864_320),
        ("30B", 32_528_943_616),
        ("65B", 65_285_660_672),
        ("70B", 70_553_706_496),
        ("405B", 405_853_388_800),
    ],
)
def test_published_counts(model: str, weights: int) -> None:
    base = PlanConfig(8, model).run().model
    assert base.vocab_size is not None
    assert sum(map(prod, parameter_shapes(base, base.vocab_size).values())) == weights
    assert set(PRESETS) == {"1B", "3B", "7B", "8B", "13B", "30B", "65B", "70B", "405B"}


def test_states_literal(config: TrainConfig) -> None:
    n = WHOLE
    assert held(config) == States(4 * n, 4 * n, 4 * n, 4 * n, 8 * n, 0)
    low = replace(config, precision=Precision(param_init_type="bfloat16"))
    assert held(low) == States(2 * n, 4 * n, 2 * n, 4 * n, 8 * n, 4 * n)
    assert held(low).optimizer == 12 * n and held(low).total == 18 * n


def test_states_of_parts(config: TrainConfig) -> None:
    # Tensor parallelism: norms are whole, 11 and 10 of the 21 rows of the embedding.
    for rank, rows in enumerate((11, 10)):
        assert held(config, Mesh(tp=2, rank=rank)).parameters == 4 * (
            rows * 16 + 2 * (32 + 1920 // 2) + 16
        )
    # Stages: a tied embedding stands at both ends.
    first, last = (held(config, Mesh(pp=2, rank=rank)).parameters for rank in (0, 1))
    assert (first, last) == (4 * (336 + 1952), 4 * (1952 + 16 + 336))
    untied = replace(config, model=replace(config.model, tie_word_embeddings=False))
    assert held(untied).parameters == 4 * (WHOLE + 336)
    assert held(untied, Mesh(pp=2, rank=1)).parameters == last


def test_states_of_replicas(config: TrainConfig) -> None:
    assert held(config, Mesh(dp=3)) == held(config)
    # A bucket of all matrices, 336 + 2 x 1920 = 4176 = 3 x 1392; one of norms, 80 = 3 x 27 - 1.
    share = 1392 + 27
    sharded = held(config, Mesh(dp=3), enable_parallel_optimizer=True)
    assert sharded == States(4 * WHOLE, 4 * WHOLE, 4 * WHOLE, 4 * share, 8 * share, 0)


def test_frozen_weights_have_neither_gradient_nor_state(config: TrainConfig) -> None:
    frozen = replace(config, frozen_params=["layers.1.*"])
    n = WHOLE - 1952
    assert held(frozen) == States(4 * WHOLE, 4 * n, 4 * n, 4 * n, 8 * n, 0)
    adapted = replace(config, lora=Lora(rank=2, targets=["q_proj", "down_proj"]))
    n = 2 * (2 * (16 + 16) + 2 * (24 + 16))
    assert held(adapted) == States(4 * (WHOLE + n), 4 * n, 4 * n, 4 * n, 8 * n, 0)
    # q_proj shares lora_a between partners, down_proj lora_b; the other one is divided.
    n = 2 * (2 * (16 + 8) + 2 * (12 + 16))
    assert held(adapted, Mesh(tp=2)).gradients == 4 * n


@pytest.mark.parametrize("mesh", list(meshes(8)), ids=str)
def test_parts_add_up_to_the_whole(config: TrainConfig, mesh: Mesh) -> None:
    config = replace(config, model=replace(config.model, num_layers=8, num_heads=8, n_kv_heads=8))
    whole = held(config).parameters
    total = sum(held(config, replace(mesh, rank=rank)).parameters for rank in range(mesh.size))
    norms = (mesh.tp - 1) * (2 * 8 + 1) * 16  # on each partner
    twice = VOCAB * 16 if mesh.pp > 1 else 0  # tied, at the other end
    assert total == mesh.dp * (whole + 4 * (norms + twice))


def test_uneven_parts_differ_by_one() -> None:
    for parts in (1, 2, 3, 5, 7):
        rows = [local_shape("lm_head.weight", (17, 4), parts, i)[0] for i in range(parts)]
        assert sum(rows) == 17 and max(rows) - min(rows) <= 1
    assert local_shape("layers.0.mlp.down_proj.weight", (16, 24), 4, 3) == (16, 6)
    assert local_shape("layers.0.self_attn.o_proj.lora_a", (2, 16), 4, 0) == (2, 4)
    assert local_shape("layers.0.self_attn.o_proj.lora_b", (16, 2), 4, 0) == (16, 2)


def test_activations_literal(config: TrainConfig) -> None:
    # B S = 24 tokens, H 16, K 8, F 24, 4 heads, 4 bytes
    one = layer_activations(config, S, 1)
    assert one.stream == one.entering == one.gathered == 4 * 24 * 16
    assert one.inner == {
        "attention": 4 * 24 * (2 * 16 + 2 * 8) + (4 + 4) * 24 * S * 4,
        "mlp": 4 * 4 * 24 * 24,
    }
    low = replace(config, precision=Precision("bfloat16"))
    assert (
        layer_activations(low, S, 2).inner["attention"]
        == (2 * 24 * (2 * 16 + 2 * 8) + (4 + 2) * 24 * S * 4) // 2
    )
    kept = activations(config, VOCAB, S, Mesh())
    assert kept.layers == 2 * (4 * one.stream + sum(one.inner.values()))
    assert (kept.again, kept.waiting) == (0, 0)
    assert kept.head == 2 * one.stream + 3 * 4 * 24 * 21


def test_recompute_keeps_less(config: TrainConfig) -> None:
    def kept(**keys: Any) -> tuple[float, float]:
        found = activations(replace(config, recompute=Recompute(**keys)), VOCAB, S, Mesh())
        return found.layers, found.again

    one = layer_activations(config, S, 1)
    attention, mlp = one.inner["attention"], one.inner["mlp"]
    whole = 4 * one.stream + attention + mlp
    assert kept() == (2 * whole, 0)
    assert kept(select=["attention"]) == (2 * (whole - attention), one.stream + attention)
    assert kept(select=["attention", "mlp"])[0] == 2 * 4 * one.stream
    assert kept(full=True) == (2 * one.stream, whole - one.stream)
    assert kept(full=True, layers=[1]) == (whole + one.stream, whole - one.stream)


def test_stages_hold_what_waits(config: TrainConfig) -> None:
    config = replace(config, model=replace(config.model, num_layers=4), micro_batch_num=8)
    stream = 4 * 24 * 16

    def waiting(schedule: Any, micro_batches: int) -> list[float]:
        run = replace(config, parallel=Parallel(schedule=schedule), micro_batch_num=micro_batches)
        return [
            activations(run, VOCAB, S, Mesh(pp=4, rank=rank)).waiting / stream for rank in range(4)
        ]

    assert waiting("1f1b", 8) == [0, 3, 2, 1]  # token ids enter the first
    assert waiting("1f1b", 2) == [0, 2, 2, 1]
    assert waiting("gpipe", 8) == [0, 8, 8, 8]


def test_traffic_literal(config: TrainConfig) -> None:
    stream = 4 * 24 * 16
    config = replace(config, micro_batch_num=5)
    states = held(config)

    def sent(mesh: Mesh, **keys: Any) -> tuple[float, float, float]:
        found = traffic(replace(config, **keys), VOCAB, S, mesh, states)
        return found.tensor / stream, found.pipeline / stream, found.data

    assert sent(Mesh()) == (0, 0, 0)
    # Two layers x 4 sums, the embedding's and the head's; an all-reduce of two sends one of each.
    assert sent(Mesh(tp=2)) == (5 * 10, 0, 0)
    assert sent(Mesh(tp=2), recompute=Recompute(full=True)) == (5 * 14, 0, 0)
    assert sent(Mesh(tp=2), recompute=Recompute(select=["mlp"], layers=[0])) == (5 * 11, 0, 0)
    assert sent(Mesh(dp=4)) == (0, 0, 1.5 * 4 * WHOLE)
    embedding = 4 * VOCAB * 16
    assert sent(Mesh(pp=2)) == sent(Mesh(pp=2, rank=1)) == (0, 5, embedding)
    three = replace(config, model=replace(config.model, num_layers=3))
    assert traffic(three, VOCAB, S, Mesh(pp=3, rank=1), states).pipeline == 2 * 5 * stream


def test_flops_literal(config: TrainConfig) -> None:
    # Weights of a layer without norms 1920; scores and values 2 x 8 x 16 pairs, a token.
    layer, head = 2 * (1920 + 2 * 8 * 16), 2 * 21 * 16
    assert micro_batch_flops(config, VOCAB, S, Mesh()) == 24 * 3 * (2 * layer + head)
    assert micro_batch_flops(config, VOCAB, S, Mesh(tp=2)) == 24 * 3 * (2 * layer + head) / 2
    # The first stage runs its forward again, in the backward pass.
    assert micro_batch_flops(config, VOCAB, S, Mesh(pp=2)) == 24 * 4 * layer
    full = replace(config, recompute=Recompute(full=True))
    assert micro_batch_flops(full, VOCAB, S, Mesh()) == 24 * (4 * 2 * layer + 3 * head)
    mlp = replace(config, recompute=Recompute(select=["mlp"], layers=[0]))
    extra = micro_batch_flops(mlp, VOCAB, S, Mesh()) - micro_batch_flops(config, VOCAB, S, Mesh())
    assert extra == 24 * 2 * 1152


def test_a_step_waits_for_the_bubble(config: TrainConfig) -> None:
    stages = [(Mesh(pp=2, rank=rank), held(config, Mesh(pp=2, rank=rank))) for rank in (0, 1)]
    fast = Hardware(node_gb_s=1e11, net_gb_s=1e11, peak_tflops=1.0, efficiency=1.0)

    def seconds(micro_batches: int) -> float:
        run = replace(config, micro_batch_num=micro_batches)
        return step_seconds(run, VOCAB, S, stages, fast)

    one = max(micro_batch_flops(config, VOCAB, S, mesh) for mesh, _ in stages) / 1e12
    assert seconds(1) == pytest.approx(2 * one, rel=1e-4)
    assert seconds(7) == pytest.approx(8 * one, rel=1e-4)


def search(model: str, cards: int, memory_gb: float = 64.0, rows: int = 512) -> Plan:
    base = PlanConfig(cards, model).run()
    assert base.model.vocab_size is not None
    return plan(base, base.model.vocab_size, rows, cards, memory_gb, Hardware())


@pytest.mark.parametrize(("model", "cards"), [("7B", 8), ("13B", 32), ("65B", 32), ("8B", 24)])
def test_what_is_recommended_fits(model: str, cards: int) -> None:
    found = search(model, cards)
    assert found.fitting
    for layout in found.fitting:
        run, mesh = layout.config, layout.mesh
        assert mesh.size == cards
        assert run.rows_per_step * mesh.dp == 512
        assert layout.total <= 0.9 * 64 * GB
        assert layout.total == pytest.approx(sum(layout.parts.values()))
        if mesh.pp > 1:
            stages, m = mesh.pp, run.micro_batch_num
            assert layout.bubble == pytest.approx((stages - 1) / (m + stages - 1))
    assert all(layout.total > 0.9 * 64 * GB for layout in found.too_large)
    seconds = [layout.seconds for layout in found.fitting]
    assert seconds == sorted(seconds)
    divisions = len(found.fitting) + len(found.too_large)
    model_config = PlanConfig(cards, model).run().model
    allowed = [mesh for mesh in meshes(cards) if obstacle(model_config, mesh, 512) is None]
    assert divisions == len(allowed)


def test_more_memory_is_never_slower() -> None:
    best = [search("7B", 8, memory).fitting[0].seconds for memory in (32.0, 64.0, 128.0)]
    assert best == sorted(best, reverse=True)


def test_offload_only_where_nothing_else_fits() -> None:
    found = search("65B", 32)
    offloaded = [a for a in found.fitting if a.config.optimizer.offload]
    assert offloaded and len(offloaded) < len(found.fitting)
    for layout in offloaded:
        assert layout.parts["optimizer"] == 0
        assert layout.total + layout.states.optimizer > 0.9 * 64 * GB


@pytest.mark.parametrize(
    ("mesh", "told"),
    [
        (Mesh(tp=3), "model_parallel 3 does not divide num_heads 4"),
        (Mesh(tp=4), "model_parallel 4 does not divide n_kv_heads 2"),
        (Mesh(pp=3), "pipeline_stage 3 is more than num_layers 2"),
        (Mesh(dp=5), "data_parallel 5 does not divide rows_per_step 12"),
        (Mesh(tp=2, pp=2, dp=3), None),
    ],
)
def test_obstacles(tiny_model: ModelConfig, mesh: Mesh, told: str | None) -> None:
    assert obstacle(replace(tiny_model, vocab_size=VOCAB), mesh, 12) == told


def test_too_many_stages(tiny_model: ModelConfig) -> None:
    deep = replace(tiny_model, num_layers=200, vocab_size=VOCAB)
    told = obstacle(deep, Mesh(pp=100), 1)
    assert told is not None and str(MOST_STAGES) in told


def test_names_of_a_layer(tiny_model: ModelConfig) -> None:
    assert list(layer_shapes(tiny_model, 3, Lora(rank=2, targets=["v_proj"])))[2:7] == [
        "layers.3.self_attn.k_proj.weight",
        "layers.3.self_attn.v_proj.weight",
        "layers.3.self_attn.v_proj.lora_a",
        "layers.3.self_attn.v_proj.lora_b",
        "layers.3.self_attn.o_proj.weight",
    ]
