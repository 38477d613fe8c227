"""From `results.json` to something to read: `words` (figures and sentences), `sections` and `designs` (what there is to
say behind the verdicts, put together by `parts`), `curves`, `charts` and `panels` (what is drawn), `page` (one offline
HTML file), `exports` (Markdown, plain text), `build` (all of it, into the store)."""
