"""Transformer ablation studies, from a laptop to a TPU pod.

Public names are imported on first use, so that `import taetpu` stays fast. If the machine has no accelerator and the
user has chosen no platform, importing the package sets `JAX_PLATFORMS=cpu` before jax is imported.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from taetpu.core.accelerators import default_to_cpu

if TYPE_CHECKING:
    from taetpu.core.errors import Failed, UserError
    from taetpu.core.registry import register
    from taetpu.interop.exporting import to_huggingface
    from taetpu.interop.huggingface import from_huggingface, load_folder
    from taetpu.judging.judged import judge
    from taetpu.lens.ablation.components import find_positions
    from taetpu.lens.ablation.documents import split_documents
    from taetpu.lens.ablation.knockout import knockout
    from taetpu.lens.ablation.patching import patch, read_pairs
    from taetpu.lens.ablation.pruning import pair_effects
    from taetpu.lens.ablation.removal import without
    from taetpu.lens.attention import attention_maps
    from taetpu.lens.attribution import attribution
    from taetpu.lens.embed import embed
    from taetpu.lens.generate import Sampling, generate
    from taetpu.lens.head_scores import head_scores
    from taetpu.lens.logit_lens import logit_lens
    from taetpu.lens.opening import open_run
    from taetpu.lens.perplexity import perplexity
    from taetpu.lens.predict import predict
    from taetpu.lens.probe import probe
    from taetpu.lens.score import score
    from taetpu.report.opened_study import open_study
    from taetpu.store.frame import read_metrics
    from taetpu.study.ablate import ablate
    from taetpu.study.components import components
    from taetpu.study.loading import load_study
    from taetpu.study.plots import plot
    from taetpu.study.run_file import run

__all__ = [
    "Failed",
    "Sampling",
    "UserError",
    "ablate",
    "attention_maps",
    "attribution",
    "components",
    "embed",
    "find_positions",
    "from_huggingface",
    "generate",
    "head_scores",
    "judge",
    "knockout",
    "load_folder",
    "load_study",
    "logit_lens",
    "open_run",
    "open_study",
    "pair_effects",
    "patch",
    "perplexity",
    "plot",
    "predict",
    "probe",
    "read_metrics",
    "read_pairs",
    "register",
    "run",
    "score",
    "split_documents",
    "to_huggingface",
    "without",
]

_HOMES = {
    "core.errors": ("Failed", "UserError"),
    "core.registry": ("register",),
    "interop.exporting": ("to_huggingface",),
    "interop.huggingface": ("from_huggingface", "load_folder"),
    "judging.judged": ("judge",),
    "lens.ablation.components": ("find_positions",),
    "lens.ablation.documents": ("split_documents",),
    "lens.ablation.knockout": ("knockout",),
    "lens.ablation.patching": ("patch", "read_pairs"),
    "lens.ablation.pruning": ("pair_effects",),
    "lens.ablation.removal": ("without",),
    "lens.attention": ("attention_maps",),
    "lens.attribution": ("attribution",),
    "lens.embed": ("embed",),
    "lens.generate": ("Sampling", "generate"),
    "lens.head_scores": ("head_scores",),
    "lens.logit_lens": ("logit_lens",),
    "lens.opening": ("open_run",),
    "lens.perplexity": ("perplexity",),
    "lens.probe": ("probe",),
    "lens.predict": ("predict",),
    "lens.score": ("score",),
    "report.opened_study": ("open_study",),
    "store.frame": ("read_metrics",),
    "study.ablate": ("ablate",),
    "study.components": ("components",),
    "study.loading": ("load_study",),
    "study.plots": ("plot",),
    "study.run_file": ("run",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    loaded = {name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType)}
    return sorted({*__all__, *loaded})


default_to_cpu()
