"""Reports generated from `results.json`.

`summary`, `overview`, `sections` and `designs` create text and tables, and `contents` puts the sections in order.
`curves`, `charts`, `curve_charts` and `panels` create charts. `page` (one offline HTML file), `exports` (Markdown and
plain text), `latex` and `csvs` implement the output formats. `build` writes a study's report.
"""
