"""Reports generated from `results.json`.

`summary`, `overview`, `sections` and `designs` create text and tables, and `inputs` reads what `results.json` does not
contain. `curves`, `charts`, `curve_charts` and `design_charts` create charts. `page` (one offline HTML file) and
`text_formats` (Markdown, plain text, LaTeX and CSV) implement the output formats. `build` writes a study's report.
"""
