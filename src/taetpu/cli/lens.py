"""`taetpu lens`: inspect trained and imported models. The commands are in the modules `lens_*`."""

import typer

from taetpu.cli import (
    lens_attention,
    lens_embed,
    lens_knockout,
    lens_layers,
    lens_patch,
    lens_perplexity,
    lens_predict,
    lens_sample,
    lens_score,
)
from taetpu.core.jax_setup import prepare_jax
from taetpu.store.errors import ADDRESS_FORMS

app = typer.Typer(
    help="Inspect trained and imported models.\n\n"
    f"ADDRESS is {ADDRESS_FORMS}; or the folder of a taetpu or Hugging Face model."
    "\n\nExample: taetpu lens perplexity latest story.txt",
)


@app.callback()
def prepare() -> None:
    """Store compiled programs, so that the next call of a command does not compile them again."""
    prepare_jax()


app.command()(lens_sample.sample)
app.command()(lens_sample.check)
app.command()(lens_sample.diff)
app.command()(lens_perplexity.perplexity)
app.command()(lens_score.score)
app.command()(lens_predict.predict)
app.command()(lens_attention.attention)
app.command()(lens_attention.scores)
app.command("logit-lens")(lens_layers.logit_lens)
app.command()(lens_layers.attribution)
app.command()(lens_layers.norms)
app.command()(lens_knockout.knockout)
app.command()(lens_patch.patch)
app.command()(lens_embed.embed)
app.command()(lens_embed.probe)
