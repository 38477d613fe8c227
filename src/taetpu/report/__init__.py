"""From `results.json` to something to read: `words` (figures and sentences), `curves` and `charts` (learning curves,
forest plot), `page` (one offline HTML file), `exports` (Markdown, plain text), `build` (all of it, into the store)."""
