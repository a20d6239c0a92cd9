"""Settings that have no effect in a recipe, each with the setting that switches it off: the one table of such rules.

A setting that somebody gave and that nothing acts on is how two runs become one experiment without anybody noticing.
Every function below goes through one section. A key that is not named there is acted on in every recipe; a test
records what real runs read and compares, and another changes every idle setting and demands the same weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leverplus.recipe.model import LOCAL, SERVER
from leverplus.recipe.schema import show_value
from leverplus.recipe.training import LABEL_ONLY, GrpoConfig, ListwiseConfig, RceConfig, SftConfig, StageConfig

if TYPE_CHECKING:
    from leverplus.recipe.recipe import Recipe

LABEL_TASKS = ("trec", "sst2", "labels")
"""Tasks whose answer is one of a fixed list of labels."""

TEXT_TASKS = (*LABEL_TASKS, "okvqa_captions")
"""Tasks whose items never have a picture."""

ONE_FILE_TASKS = ("jsonl", "labels")
"""Tasks that are one file, named in task.file; the others are a folder."""

HARD, SOFT = ("hard_weight", "hard_by_shots"), ("soft_weight", "soft_by_shots")
REWARD_READS: Mapping[str, tuple[str, ...]] = {
    "hard_plus_soft": (*HARD, *SOFT),
    "hard_plus_soft_v2": (*HARD, *SOFT),
    "separated": (*HARD, *SOFT),
    "hard_only": HARD,
    "soft_only": SOFT,
    "expected_accuracy": SOFT,
    "gt_prob": SOFT,
    "choice_prob": SOFT,
    "hard_plus_gtprob": (*HARD, *SOFT),
    "hard01_plus_gtprob": (*HARD, *SOFT),
    "hard01_plus_gtprob_separated": (*HARD, *SOFT),
    "hard_plus_gtprob_plus_rel": (*HARD, *SOFT, "rel_weight"),
    "legacy": ("alpha", "beta", "correctness", "quality"),
    "hybrid": ("alpha",),
    "rank": SOFT,
}
"""The weights that each reward reads; a reward that is not listed, such as one from outside, may read all of them."""

WEIGHTS = (*HARD, *SOFT, "rel_weight", "alpha", "beta", "correctness", "quality")

POOL_SETTINGS = ("text_weight", "mix_random", "mix_text", "mix_image", "first_stage", "ann_above")

POOL_READS: Mapping[str, tuple[str, ...]] = {
    "random": (),
    "nearest_text": (),
    "nearest_image": (),
    "nearest_both": ("text_weight",),
    "mix": ("mix_random", "mix_text", "mix_image"),
    "two_stage": ("first_stage",),
    "mmr": ("text_weight", "first_stage"),
    "corpus": ("text_weight", "ann_above"),
    "recorded": (),
}
"""The settings that each kind of pool reads; a kind that is not listed, such as one from outside, may read all."""

Reasons = dict[str, str]


def idle_settings(recipe: Recipe) -> Reasons:
    """Every setting without effect in this recipe, given or not, by its key, with the reason."""
    found: Reasons = {}
    for rules in (_task, _embed, _pool, _model, _score, _select, _reward, _train, _eval, _mistakes):
        found |= rules(recipe)
    for name in recipe.stages:
        found |= _stage(recipe, name)
    return found


def idle_given(recipe: Recipe) -> list[dict[str, Any]]:
    """The settings that were given (in the file, through extends or by --set) although they have no effect."""
    values = recipe.values()
    found = []
    for key, why in idle_settings(recipe).items():
        if key in recipe.given:
            section, _, name = key.partition(".")
            found.append({"key": key, "value": values[section][name], "why": why})
    return found


def embeds_pictures(recipe: Recipe) -> bool:
    """Whether items may have vectors of their own for pictures."""
    return shows_pictures(recipe) and recipe.embed.name != "sentence" and not recipe.embed.mean


def shows_pictures(recipe: Recipe) -> bool:
    """Whether items may have pictures; of a task in a file of one's own nobody knows before it is read."""
    return recipe.task.name not in TEXT_TASKS and recipe.task.images != "none"


def reward_modes(recipe: Recipe) -> tuple[str, ...]:
    """The rewards of a recipe: its components, or the one it names."""
    return recipe.reward.components or (recipe.reward.mode,)


def same_shots(recipe: Recipe) -> bool:
    """Whether only lists of equal length compete."""
    compare = recipe.reward.compare
    return compare == "same_shots" or (compare == "auto" and recipe.select.stop == "never")


def one_label_rows(recipe: Recipe) -> bool:
    """Whether sft sees a single list a row, so that there is nothing to weigh it against."""
    all_members = recipe.score.rounds > 0 and recipe.train.asking != "sft"
    return recipe.train.imitate == 1 and same_shots(recipe) and not all_members


def _off(section: str, keys: Iterable[str], why: str) -> Reasons:
    return {f"{section}.{key}": why for key in keys}


def _is(recipe: Recipe, key: str) -> str:
    """`score.search = "dense"`: a setting as it stands."""
    section, _, name = key.partition(".")
    owner = recipe.stages[section] if section in recipe.stages else getattr(recipe, section)
    return f"{key} = {show_value(getattr(owner, name))}"


def _task(recipe: Recipe) -> Reasons:
    name, why = recipe.task.name, f"the task {recipe.task.name} does not read it"
    if name == "world":
        keys = [field.name for field in dataclasses.fields(recipe.task) if field.name not in ("name", "world_seed")]
        return _off("task", keys, why)
    found = _off("task", ["world_seed"], why)
    if name in TEXT_TASKS:
        found |= _off("task", ["images"], why)
    if name != "jsonl":
        found |= _off("task", ["metric", "outside"], why)
    if name not in ONE_FILE_TASKS:
        found |= _off("task", ["rules"], why)
    found |= _off("task", ["folder"] if name in ONE_FILE_TASKS else ["file"], why)
    if name != "okvqa_captions":
        found |= _off("task", ["captions"], why)
    return found


def _embed(recipe: Recipe) -> Reasons:
    if recipe.embed.name == "world":
        return _off("embed", ["model", "device", "batch", "mean"], "the world's embedder has no such choice")
    if not shows_pictures(recipe):
        return _off("embed", ["mean"], "the items have no pictures")
    return {}


def _pool(recipe: Recipe) -> Reasons:
    # pool.mmr_lambda is read by the arm mmr of every evaluation, whatever the pool
    kind, why = recipe.pool.kind, f"{_is(recipe, 'pool.kind')} does not read it"
    reads = POOL_READS.get(kind, POOL_SETTINGS)
    return _off("pool", [key for key in POOL_SETTINGS if key not in reads], why)


def _model(recipe: Recipe) -> Reasons:
    backend, model = recipe.score.backend, recipe.model
    if backend == "world":
        return _off(
            "model", [field.name for field in dataclasses.fields(model)], 'score.backend = "world" brings its own model'
        )
    found: Reasons = {}
    if backend == "openai":
        found |= _off("model", LOCAL, 'score.backend = "openai" does not use it')
    if backend in ("hf", "vllm"):
        found |= _off("model", SERVER, f'score.backend = "{backend}" does not use it')
    if backend == "vllm":
        own = ["batch_tokens", "image_cache", "beams", "length_penalty"]
        found |= _off("model", own, "vLLM finds its own batches, caches pictures itself and writes greedily")
    if model.prompt == "chat":
        found |= _off("model", ["template"], 'model.prompt = "chat" writes turns of the model\'s own template')
    if not shows_pictures(recipe):
        found |= _off("model", ["image_pixels", "image_cache"], "the items have no pictures")
    if backend in ("hf", "vllm") and recipe.task.name in LABEL_TASKS:
        found |= _off("model", ["max_new_tokens", "beams", "length_penalty"], "labels are weighed, nothing is written")
    if model.beams == 1:
        found |= _off("model", ["length_penalty"], "model.beams = 1 has one ending")
    return found


def _score(recipe: Recipe) -> Reasons:
    score = recipe.score
    found: Reasons = {}
    if score.engine != "ray":
        found |= _off("score", ["workers", "worker_timeout"], _is(recipe, "score.engine") + " has no workers")
    if not score.pilot:
        found |= _off("score", ["pilot_demos"], "score.pilot = 0 makes no pilot")
    mixed = ("random", "retrieved", "samples", "temperatures", "stochastic", "selector_beams", "prefixes")
    rounds = ("first_share", "best", "chance", "depth")
    if score.groups:
        searched = ("budget", "queries", "search", "shots", "beam", "side", "mine", "rounds", *mixed, *rounds)
        return found | _off("score", searched, "score.groups is learnt from, so nothing is searched")
    if score.search == "dense":
        found |= _off("score", ["shots"], 'score.search = "dense" tries single demonstrations')
    if score.search != "beam" or score.shots == 1:
        why = _is(recipe, "score.search") if score.search != "beam" else _is(recipe, "score.shots")
        found |= _off("score", ["beam", "side"], f"{why} has no beams")
    if score.search != "mixed":
        found |= _off("score", mixed, f"{_is(recipe, 'score.search')} does not read it")
    elif not score.samples:
        found |= _off("score", ["temperatures"], "score.samples = 0 draws nothing at a temperature")
    if not score.rounds:
        found |= _off("score", rounds, "score.rounds = 0 asks in no rounds")
    return found


def _select(recipe: Recipe) -> Reasons:
    select = recipe.select
    found: Reasons = {}
    if select.model != "pointer":
        found |= _id_model(recipe)
    else:
        found |= _pointer(recipe)
    one_each = len(select.query_fields) == 1 and len(select.demo_fields) == 1
    if one_each and (select.model != "pointer" or select.trunk == "bi_encoder"):
        found |= _off("select", ["fuse"], "there is one field each, and nothing to fuse")
    supervised = [name for name, stage in recipe.stages.items() if not isinstance(stage, GrpoConfig)]
    ratio = any(isinstance(stage, GrpoConfig) and stage.dropout_in_ratio for stage in recipe.stages.values())
    if not supervised and not ratio:
        found |= _off("select", ["dropout", "attention_dropout"], "no stage of train.stages trains with dropout")
    return found


def _id_model(recipe: Recipe) -> Reasons:
    pointer_only = (
        *("trunk", "pool_layers", "attention_dropout", "state", "step_embedding", "head", "head_hidden"),
        *("temperature", "learn_temperature", "mmr", "mmr_strength", "topics", "dpp", "dpp_rank"),
        *("slot_layers", "slot_attends", "slot_form", "refine", "refine_top", "refine_others"),
    )
    why = f"{_is(recipe, 'select.model')} does not read it"
    found = _off("select", pointer_only, why)
    if recipe.select.id_form != "linear":
        found |= _off("select", ["fuse"], f"{_is(recipe, 'select.id_form')} adds every field by itself")
    if recipe.select.model == "lstm":
        found |= _off("select", ["heads"], why)
        if recipe.select.layers == 1:
            found |= _off("select", ["dropout"], "an LSTM of one layer has no dropout")
    return found


def _pointer(recipe: Recipe) -> Reasons:
    select = recipe.select
    found: Reasons = _off("select", ["id_form"], f"{_is(recipe, 'select.model')} knows no ids")
    if select.trunk == "bi_encoder":
        why = _is(recipe, "select.trunk")
        found |= _off("select", ["layers"], f"{why} has no attention layers")
        attends = select.decoder == "slots" or (select.decoder == "refine" and select.refine == "attention")
        if not attends:
            found |= _off("select", ["heads", "attention_dropout"], f"{why} does not attend")
    if select.trunk != "set_encoder":
        found |= _off("select", ["pool_layers"], f"{_is(recipe, 'select.trunk')} does not read it")
    if select.head != "interaction_mlp":
        found |= _off("select", ["head_hidden"], f"{_is(recipe, 'select.head')} does not read it")
    if select.mmr == "none":
        found |= _off("select", ["mmr_strength"], 'select.mmr = "none" leaves the penalty out')
    if select.dpp == "none":
        found |= _off("select", ["dpp_rank"], 'select.dpp = "none" leaves the term out')
    decoder = f"{_is(recipe, 'select.decoder')} does not read it"
    if select.decoder != "slots":
        found |= _off("select", ["slot_layers", "slot_attends", "slot_form"], decoder)
    else:
        found |= _off("select", ["step_embedding"], decoder)
    if select.decoder != "refine":
        found |= _off("select", ["refine", "refine_top", "refine_others"], decoder)
    return found


def _reward(recipe: Recipe) -> Reasons:
    reward, modes = recipe.reward, reward_modes(recipe)
    reads = {key for mode in modes for key in REWARD_READS.get(mode, WEIGHTS)}
    named = f"reward.components = {list(modes)}" if reward.components else _is(recipe, "reward.mode")
    found = _off("reward", [key for key in WEIGHTS if key not in reads], f"{named} does not read it")
    if "quality" in reads and reward.alpha == 0.0:
        found |= _off("reward", ["quality"], "reward.alpha = 0 leaves quality out")
    if "correctness" in reads and reward.beta == 0.0:
        found |= _off("reward", ["correctness"], "reward.beta = 0 leaves correctness out")
    if reward.components:
        found |= _off("reward", ["mode"], "reward.components stands in its place")
    if len(modes) == 1:
        found |= _off("reward", ["adaptive"], f"{named} is one reward, and there is nothing to balance")
    if reward.normalise != "z_score_clamp":
        found |= _off("reward", ["clamp"], f"{_is(recipe, 'reward.normalise')} has no bound")
    if not any(_reads_rewards(recipe, name, stage) for name, stage in recipe.stages.items()):
        keys = [field.name for field in dataclasses.fields(reward) if field.name != "compare"]
        if recipe.score.backend == "openai":
            # Rows carry rewards whether they are read or not, and a server may not offer what this reward needs.
            keys.remove("mode")
        found |= _off("reward", keys, "no stage learns from rewards: sft imitates the best lists, all alike")
    return found


def _reads_rewards(recipe: Recipe, name: str, stage: StageConfig) -> bool:
    """Whether rewards decide anything in a stage; `label_pretraining` learns from labels alone."""
    if name in LABEL_ONLY or stage.epochs == 0:
        return False
    filters = stage.easy_epochs > 0 and stage.easy_gap > 0.0
    if isinstance(stage, SftConfig):
        return filters or (stage.labels != "all" and not one_label_rows(recipe))
    return filters or not (isinstance(stage, RceConfig) and stage.top1)


def _train(recipe: Recipe) -> Reasons:
    rounds, asking = recipe.score.rounds, recipe.train.asking
    if "sft" not in recipe.stages:
        return _off("train", ["imitate"], "no stage is sft")
    if rounds and asking != "sft":
        return _off("train", ["imitate"], f"with score.rounds sft learns from all that {asking} asked")
    return {}


def _eval(recipe: Recipe) -> Reasons:
    section = recipe.eval
    found: Reasons = {}
    if not embeds_pictures(recipe) and not section.advice:
        found |= _off("eval", ["dev_items"], "there are no picture vectors to weigh against those of questions")
    if recipe.task.name not in LABEL_TASKS:
        found |= _off("eval", ["calibrate"], f"the task {recipe.task.name} has no labels")
    if not section.oracle:
        found |= _off("eval", ["exhaustive_calls"], "eval.oracle = false")
    elif 2 not in section.shots:
        found |= _off("eval", ["exhaustive_calls"], "eval.shots has no 2, and pairs are what is tried")
    if not section.diagnostics:
        found |= _off("eval", ["diagnostic_items"], "eval.diagnostics = false")
    return found


def _mistakes(recipe: Recipe) -> Reasons:
    found: Reasons = {}
    if "sft" not in recipe.stages:
        found |= _off("mistakes", ["labels"], "no stage is sft")
    if recipe.score.groups:
        found |= _off("mistakes", ["members"], "score.groups is learnt from as it is")
    return found


def _stage(recipe: Recipe, name: str) -> Reasons:
    stage = recipe.stages[name]
    if stage.epochs == 0:
        kept = ("epochs", "freeze", "lora_rank")  # wrong parts are refused, and adapters are made, all the same
        keys = [field.name for field in dataclasses.fields(stage) if field.name not in kept]
        return _off(name, keys, f"{name}.epochs = 0 trains nothing")
    found: Reasons = {}
    if stage.schedule == "constant":
        found |= _off(name, ["final_lr"], f'{name}.schedule = "constant" ends where it began')
    if stage.keep == "last" and not (stage.easy_best and stage.easy_epochs):
        found |= _off(name, ["monitor"], f'{name}.keep = "last" takes the last epoch, however good it is')
    if not stage.easy_epochs:
        found |= _off(name, ["easy_gap", "easy_count", "easy_best"], f"{name}.easy_epochs = 0 has no easy epochs")
        if not stage.min_positive_ratio:
            why = f"{name}.min_positive_ratio = 0 and {name}.easy_epochs = 0 ask for no positives"
            found |= _off(name, ["positive_threshold"], why)
    rules = {SftConfig: _sft, RceConfig: _rce, ListwiseConfig: _listwise, GrpoConfig: _grpo}.get(type(stage))
    return found | (rules(recipe, stage) if rules else {})


def _sft(recipe: Recipe, stage: Any) -> Reasons:
    found: Reasons = {}
    if one_label_rows(recipe):
        found |= _off("sft", ["labels", "temperature"], "train.imitate = 1 leaves one list to learn from")
    elif stage.labels != "weighted":
        found |= _off("sft", ["temperature"], f"{_is(recipe, 'sft.labels')} has no temperature")
    if not stage.lora_rank:
        found |= _off("sft", ["lora_alpha", "lora_dropout"], "sft.lora_rank = 0 trains no adapters")
    return found


def _rce(recipe: Recipe, stage: Any) -> Reasons:  # noqa: ARG001 one signature
    if not stage.top1:
        return {}
    keys = ["temperature_start", "temperature_end", "weights", "centred", "skip_flat"]
    return _off("rce", keys, "rce.top1 = true learns from the first list alone, however good it is")


def _listwise(recipe: Recipe, stage: Any) -> Reasons:  # noqa: ARG001
    return _off("listwise", ["temperature"], 'listwise.among = "pairs" has none') if stage.among == "pairs" else {}


def _grpo(recipe: Recipe, stage: Any) -> Reasons:
    found: Reasons = {}
    if stage.advantage not in ("zscore", "zscore_sample"):
        found |= _off("grpo", ["std_floor"], f"{_is(recipe, 'grpo.advantage')} divides by no deviation")
    if not stage.top_k:
        found |= _off("grpo", ["topk_before_advantage"], "grpo.top_k = [] keeps all members")
    if stage.behaviour != "stored":
        found |= _off("grpo", ["importance_cap"], f"{_is(recipe, 'grpo.behaviour')} has no importance weight")
    rule = ("kl_low", "kl_high", "beta_factor", "beta_min", "beta_max")
    if stage.clip_only:
        why = "grpo.clip_only = true leaves the KL term out"
        found |= _off("grpo", ["reference", "kl", "kl_beta", "beta_rule", *rule], why)
    elif stage.beta_rule == "fixed":
        found |= _off("grpo", rule, 'grpo.beta_rule = "fixed" keeps the weight of the KL term')
        if stage.kl_beta == 0.0:
            found |= _off("grpo", ["reference", "kl"], "grpo.kl_beta = 0 leaves the KL term out")
    if recipe.select.dropout == 0.0 and recipe.select.attention_dropout == 0.0:
        found |= _off("grpo", ["dropout_in_ratio"], "the selector has no dropout")
    return found
