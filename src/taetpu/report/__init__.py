"""Reports from `results.json`.

`summary`, `overview`, `sections` and `designs` hold text and tables, collected by `contents`; `curves`, `charts`,
`curve_charts` and `panels` hold charts; `page` (one offline HTML file), `exports` (Markdown, plain text), `latex` and
`csvs` are the formats; `build` writes a study's report.
"""
