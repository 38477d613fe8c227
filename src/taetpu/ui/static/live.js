// The live page: its content is a fold over the server's messages, and the address selects the page.

const main = document.getElementById("main");
const link = document.getElementById("link");
const MOST_POINTS = 400; // per line
const PEAK = 50; // a curve has peaks if its range exceeds that of the lowest 90 % of its values by this factor
const SHOWN = 3; // the range of a chart with peaks, relative to that of the lowest 90 % of its values
const REDRAW = 2000; // milliseconds between two redraws of a chart
const POLL = 2000;
const PAGE = 200; // rows of a table shown at first

// --- small parts ---

function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

// Text with code between backticks, as a list of nodes.
const prose = (text) => text.split("`").map((part, i, parts) => (i % 2 && parts.length % 2 ? h("code", {}, part) : part));
const url = (...parts) => parts.map(encodeURIComponent).join("/");
const digits = (value) => (typeof value === "number" ? value.toPrecision(5) : short(value)); // of a column, with trailing zeros
const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : value == null ? "-" : typeof value === "object" ? JSON.stringify(value) : String(value));
const figure = (value) => typeof value === "number";

async function fetched(path) {
  const answer = await fetch(path);
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.problem ?? `the server answered ${answer.status}`);
  return data;
}

function show(title, ...children) {
  document.title = `${title} - taetpu`;
  main.replaceChildren(h("h1", {}, title), ...children);
}

// A table that can be searched and sorted. `columns` are {name, cell(row), value(row)}; the first column is the header of the row.
function table(caption, columns) {
  const body = h("tbody");
  const state = { rows: [], sort: null, down: false, wanted: "", shown: PAGE };
  const empty = (value) => value == null || value === "" || value === "-";
  const heads = columns.map((column) => h("th", { scope: "col", class: column.figure ? "n" : null },
    h("button", { type: "button", onclick: () => { state.down = state.sort === column && !state.down; state.sort = column; draw(); } }, column.name)));
  const search = h("input", { type: "search", oninput: () => { state.wanted = search.value.toLowerCase(); draw(); } });
  const count = h("span", { class: "soft", role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: () => { state.shown *= 4; draw(); } }, "More");
  const order = (a, b) => {
    const [x, y] = [a, b].map(state.sort.value);
    if (x == null || y == null) return (x == null) - (y == null);
    return (state.down ? -1 : 1) * (figure(x) && figure(y) ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  };
  function draw() {
    const words = state.wanted.split(/\s+/);
    const text = (row) => columns.map((column) => short(column.value(row))).join(" ").toLowerCase();
    let rows = state.rows.filter((row) => words.every((word) => text(row).includes(word)));
    if (state.sort) rows = [...rows].sort(order);
    const kept = columns.map((column, i) => !i || !state.rows.every((row) => empty(column.value(row)))); // without empty columns
    heads.forEach((head, i) => { head.hidden = !kept[i]; head.setAttribute("aria-sort", columns[i] !== state.sort ? "none" : state.down ? "descending" : "ascending"); });
    const matches = rows.length === state.rows.length ? "" : `${rows.length} of ${state.rows.length}`;
    count.textContent = rows.length > state.shown ? `${matches || rows.length}, the first ${state.shown} shown` : matches;
    more.hidden = rows.length <= state.shown;
    body.replaceChildren(...rows.slice(0, state.shown).map((row) => h("tr", {}, columns.map((column, i) =>
      kept[i] ? h(i ? "td" : "th", i ? { class: column.figure ? "n" : null } : { scope: "row" }, (column.cell ?? ((r) => short(column.value(r))))(row)) : null))));
  }
  const wide = h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": caption }, h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body));
  const measure = new ResizeObserver(() => wide.classList.toggle("more", wide.scrollWidth > wide.clientWidth + 1));
  for (const part of [wide, wide.firstChild]) measure.observe(part);
  return {
    node: h("div", {}, h("div", { class: "bar" }, h("label", {}, `Search ${caption.toLowerCase()}`, search), count), wide, more),
    fill(rows) { state.rows = rows; draw(); },
    head(number, name) { heads[number].firstChild.textContent = name; },
  };
}

// --- charts ---

const dark = matchMedia("(prefers-color-scheme: dark)");

function look() {
  const [text, grid] = dark.matches ? ["#c9ced6", "#2c3138"] : ["#3d434b", "#e4e7eb"];
  const axis = { labelColor: text, titleColor: text, gridColor: grid, tickColor: grid, domainColor: grid, titleFontWeight: "normal" };
  return { background: null, font: "system-ui, sans-serif", view: { stroke: null }, axis, legend: { labelColor: text, titleColor: text, labelLimit: 220 } };
}

// The upper end of a chart whose highest values, such as those of a diverged run, would flatten all lines; else null.
function highestShown(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const low = sorted[0], range = sorted[Math.floor(0.9 * sorted.length)] - low;
  return range > 0 && sorted.at(-1) > low + PEAK * range ? low + SHOWN * range : null;
}

// A chart of lines that can be zoomed and dragged. `update(rows, metric)` takes rows of {step, value, line}.
function chart(label) {
  const place = h("div", { class: "chart", role: "img", "aria-label": label });
  let view = null, latest = [], metric = "", timer = null, drawn = "";
  const spec = (title, lines, top) => ({
    width: "container", height: 320, autosize: { type: "fit-x", contains: "padding" }, data: { name: "points" },
    params: [{ name: "zoom", select: "interval", bind: "scales" }, { name: "picked", select: { type: "point", fields: ["line"] }, bind: "legend" }],
    mark: { type: "line", strokeWidth: 1.8, clip: true, point: false },
    encoding: {
      x: { field: "step", type: "quantitative", axis: { grid: false, tickCount: 8 } },
      y: { field: "value", type: "quantitative", title, scale: { zero: false, ...(top === null ? {} : { domainMax: top }) } },
      color: {
        field: "line", type: "nominal", title: null, sort: null, scale: { scheme: lines > 10 ? "tableau20" : "tableau10" },
        legend: innerWidth < 600 ? { orient: "bottom", columns: 2 } : {},
      },
      opacity: { condition: { param: "picked", value: 1 }, value: 0.15 },
      tooltip: [{ field: "line" }, { field: "step" }, { field: "value", format: ".4f" }],
    },
  });
  async function draw() {
    timer = null;
    if (!latest.length) return;
    const lines = new Set(latest.map((row) => row.line)).size;
    const top = highestShown(latest.map((row) => row.value));
    const wanted = `${metric} ${dark.matches} ${lines > 10} ${top !== null}`;
    if (drawn !== wanted) { // rebuild for another metric, theme or range; new points alone keep the zoom
      drawn = wanted;
      // `ast` makes Vega interpret expressions, as the content security policy requires.
      view = (await vegaEmbed(place, { ...spec(top === null ? metric : `${metric} (peaks cut off)`, lines, top), datasets: { points: latest } }, { ast: true, actions: false, renderer: "canvas", config: look() })).view;
    } else if (view) {
      await view.data("points", latest).runAsync();
    }
  }
  const soon = () => { timer ??= setTimeout(draw, drawn ? REDRAW : 0); };
  dark.addEventListener("change", soon);
  return { node: place, update(rows, name) { latest = rows; if (name !== metric) { metric = name; clearTimeout(timer); timer = null; draw(); } else soon(); } };
}

// Pictures of the report, as `{title: spec}`. They are drawn again only if they change.
function pictures(place) {
  const node = h("div");
  let drawn = "", latest = {}, themes = {};
  const draw = () => {
    node.replaceChildren();
    for (const [title, spec] of Object.entries(latest)) {
      const picture = place(node, title);
      vegaEmbed(picture, spec, { ast: true, actions: false, renderer: "svg", defaultStyle: false, config: themes[dark.matches ? "dark" : "light"] })
        .then(() => picture.querySelector("svg").setAttribute("aria-hidden", "true"));
    }
  };
  dark.addEventListener("change", draw);
  return {
    node,
    update(specs, config) {
      const wanted = JSON.stringify(specs);
      if (wanted === drawn) return;
      drawn = wanted;
      [latest, themes] = [specs, config];
      draw();
    },
  };
}

const titled = (node, title) => { const place = h("div", { class: "picture", role: "img", "aria-label": title }); node.append(h("h2", {}, title), place); return place; };
const untitled = (node, title) => { const place = h("div", { class: "picture forest", role: "img", "aria-label": title }); node.append(place); return place; };

// Returns the mean over runs at every step that any run has, thinned to the chart's resolution.
function line(name, runs) {
  const at = new Map();
  for (const [steps, values] of runs) steps.forEach((step, i) => {
    if (values[i] == null) return;
    const here = at.get(step) ?? [0, 0];
    at.set(step, [here[0] + values[i], here[1] + 1]);
  });
  const steps = [...at.keys()].sort((a, b) => a - b);
  const every = Math.max(1, Math.ceil(steps.length / MOST_POINTS));
  return steps.filter((_, i) => i % every === 0 || i === steps.length - 1).map((step) => ({ line: name, step, value: at.get(step)[0] / at.get(step)[1] }));
}

// --- the messages ---

const GONE = "The server is not reachable; this page reconnects automatically.";

// Asks for new messages every two seconds and calls `hear(kind, data)` for each.
async function listen(study, hear) {
  let cursor = "";
  for (;;) {
    try {
      const messages = await fetched(`/data/study/${url(study)}?since=${encodeURIComponent(cursor)}`);
      for (const { id, kind, data } of messages) { cursor = id; hear(kind, data); }
      link.textContent = "";
    } catch (error) { link.textContent = error instanceof TypeError ? GONE : error.message; } // network errors are TypeErrors; others are from the server
    await new Promise((done) => setTimeout(done, POLL));
  }
}

// Returns the state of a study after one more message.
export function fold(state, kind, data) {
  if (kind === "state") return structuredClone(data);
  if (kind === "study") state.study = data;
  if (kind === "effects") state.effects = data;
  if (kind === "problem") state.problem = data.text;
  const run = data.run && (state.runs[data.run] ??= { series: {} });
  if (kind === "run") Object.assign(run, { arm: data.arm, seed: data.seed, status: data.status });
  if (kind === "usage") { run.use = data.use; state.using = data.run; }
  if (kind === "points") for (const [name, [steps, values]] of Object.entries(data.series)) {
    const known = (run.series[name] ??= [[], []]);
    known[0].push(...steps);
    known[1].push(...values);
  }
  if (kind === "cut") for (const series of Object.values(run.series)) {
    const keep = series[0].filter((step) => step <= data.step).length;
    series[0].length = series[1].length = keep;
  }
  return state;
}

// --- pages ---

async function studies() {
  const rows = table("Studies", [
    { name: "study", value: (r) => r.study, cell: (r) => h("a", { href: `/study/${url(r.study)}` }, r.study) },
    { name: "arms", value: (r) => r.arms, figure: true },
    { name: "seeds", value: (r) => r.seeds, figure: true },
    { name: "runs", value: (r) => r.done / (r.runs || 1), cell: (r) => [h("progress", { max: r.runs || 1, value: r.done, "aria-label": `runs of ${r.study}` }), ` ${r.done}/${r.runs}`] },
    { name: "changed", value: (r) => r.changed, cell: (r) => new Date(r.changed).toLocaleString() },
    { name: "problem", value: (r) => r.problem, cell: (r) => h("span", {}, prose(r.problem ?? "")) },
  ]);
  const none = h("p", { class: "soft", hidden: true }, "There is no study here yet. A study appears shortly after ", h("code", {}, "taetpu run"), " starts it.");
  show("Studies", none, rows.node);
  const refresh = async () => {
    try {
      const stored = await fetched("/data/studies");
      rows.fill(stored);
      none.hidden = stored.length > 0;
      link.textContent = "";
    } catch (error) { link.textContent = error.message; }
    setTimeout(refresh, 5000);
  };
  await refresh();
}

const last = (runs, metric) => {
  const values = runs.map((run) => run.series[metric]?.[1].at(-1)).filter((value) => value != null);
  return values.length ? values.reduce((a, b) => a + b) / values.length : null;
};
const reached = (run) => Math.max(0, ...Object.values(run.series).map(([steps]) => steps.at(-1) ?? 0));

const UNITS = new Set(["flops", "tokens", "samples", "seconds"]); // amounts of training, which are not metrics
const metricsOf = (runs) => [...new Set(runs.flatMap((run) => Object.keys(run.series ?? run.metrics)))].filter((name) => !UNITS.has(name)).sort();
const labelOf = ({ names }, series) => names?.[series]?.[0] ?? series; // `names` are labels, and titles with units
const titleOf = ({ names }, series) => names?.[series]?.[1] ?? series;
const count = (runs, status) => runs.filter((run) => run.status === status).length;

// One line that opens to a list.
function warnings(texts) {
  if (!texts.length) return null;
  const opened = document.querySelector(".notices")?.open ?? false;
  return h("details", { class: "notice notices", open: opened },
    h("summary", {}, h("b", {}, `${texts.length} warning${texts.length > 1 ? "s" : ""} `), h("span", { class: "first" }, texts.join(" "))),
    h("ul", {}, texts.map((text) => h("li", {}, prose(text)))));
}

function study(name) {
  let state = { study: { arms: [], seeds: [] }, runs: {}, effects: {}, problem: "" };
  let timer = null, metric = null, headed = "";
  const series = () => state.study.shown ?? "val/loss"; // the series for the primary metric
  const far = (value) => value && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6);
  const fixed = (value) => // at least as many decimals as effects
    value == null ? "-" : far(value) ? value.toExponential(3) : value.toFixed(state.effects.places ?? 4);
  const label = (name) => labelOf(state.study, name);
  const head = h("div", {}, h("p", { class: "soft" }, "Reading the study ...")), picked = h("select", { onchange: () => { metric = picked.value; draw(); } });
  const shown = h("select", { onchange: () => draw() }, h("option", { value: "arm" }, "mean of each arm"), h("option", { value: "run" }, "every run"));
  const wanted = h("input", { type: "search", oninput: () => draw() });
  const curves = chart(`Curves of ${name}; the table has the last values`);
  const arms = table("Arms", [
    { name: "arm", value: (r) => r.arm, cell: (r) => h("span", {}, r.arm, r.change ? h("div", { class: "soft" }, r.change) : null) },
    { name: "effect", value: (r) => (r.effect === "-" ? null : Number(r.effect)), cell: (r) => r.effect, figure: true },
    { name: "verdict", value: (r) => r.verdict, cell: (r) => h("span", { class: r.verdict, title: r.evidence }, r.mark ? h("span", { "aria-hidden": "true" }, `${r.mark} `) : null, r.verdict) },
    { name: "95 % interval", value: (r) => r.interval, figure: true },
    { name: series(), value: (r) => r.shown, cell: (r) => fixed(r.shown), figure: true },
    { name: "train/loss", value: (r) => r.train, cell: (r) => fixed(r.train), figure: true },
    { name: "step", value: (r) => r.step, figure: true },
    { name: "runs", value: (r) => r.runs, cell: (r) => (r.diverged ? `${r.runs}, ${r.diverged} diverged` : r.runs) },
  ]);
  const runs = table("Runs", [
    { name: "run", value: (r) => `${r.arm}/${r.seed}`, cell: (r) => h("a", { href: `/run/${url(name)}/${r.key.replace(/^runs\//, "").split("/").map(encodeURIComponent).join("/")}` }, `${r.arm}/${r.seed}`) },
    { name: "status", value: (r) => r.status },
    { name: "step", value: (r) => reached(r), figure: true },
    { name: "train/loss", value: (r) => last([r], "train/loss"), cell: (r) => fixed(last([r], "train/loss")), figure: true },
    { name: series(), value: (r) => last([r], series()), cell: (r) => fixed(last([r], series())), figure: true },
  ]);
  const forest = pictures(untitled), drawings = pictures(titled), about = h("p", { class: "soft" });
  show(name, head, forest.node, h("h2", {}, "Arms"), about, arms.node, drawings.node, h("h2", {}, "Curves"),
    h("div", { class: "bar" }, h("label", {}, "Metric", picked), h("label", {}, "Lines", shown), h("label", {}, "Only arms with", wanted), h("span", { class: "soft" }, "Scroll to zoom, drag to pan, and double-click to reset. Click the legend to highlight lines.")),
    curves.node, h("h2", {}, "Runs"), runs.node);

  // The lines above the forest plot. They are replaced only if they change, so that opened warnings stay open.
  function drawHead(all) {
    const planned = all.filter((run) => state.study.arms.includes(run.arm) && state.study.seeds.includes(run.seed));
    const [stopped, diverged] = [count(planned, "stopped"), count(planned, "diverged")];
    const finished = count(planned, "finished") + stopped;
    const total = state.study.arms.length * state.study.seeds.length;
    const training = all.filter((run) => run.status === "unfinished" && run.use);
    const using = training.find((run) => run.key === state.using) ?? training.at(-1); // the pack in training: the last one to report
    const { headline = "", notices = [], counts = [] } = state.effects;
    const facts = JSON.stringify([headline, notices, counts, finished, stopped, diverged, total, using?.use, state.problem]);
    if (facts === headed) return;
    headed = facts;
    head.replaceChildren(...[
      h("p", { class: "title" }, h("span", {}, headline), headline ? h("a", { href: `/report/${url(name)}` }, "Report") : null),
      h("p", { class: "soft" }, h("progress", { max: total || 1, value: finished + diverged, "aria-label": "runs" }), ` ${finished} of ${total} runs finished${stopped ? `, ${stopped} of them stopped early` : ""}${diverged ? `, ${diverged} diverged` : ""}`, using ? `. Device: ${using.use}` : ""),
      counts.length ? h("ul", { class: "counts", "aria-label": "Number of arms by verdict" }, counts.map(([mark, label, number]) => h("li", { class: number ? label : "soft" }, `${mark} `, h("b", {}, number), ` ${label}`))) : null,
      warnings(notices),
      state.problem ? h("p", { class: "notice" }, prose(state.problem)) : null,
    ].filter(Boolean));
  }

  function draw() {
    timer = null;
    const all = Object.entries(state.runs).map(([key, run]) => ({ key, ...run }));
    const metrics = metricsOf(all);
    metric ??= [state.study.curve, "train/loss"].find((each) => metrics.includes(each)) ?? null;
    for (const [each, at] of [[arms, 5], [runs, 3]]) { each.head(4, label(series())); each.head(at, label("train/loss")); }
    if (picked.dataset.of !== metrics.join()) {
      picked.dataset.of = metrics.join();
      picked.replaceChildren(...metrics.map((each) => h("option", { value: each, selected: each === metric }, label(each))));
    }
    drawHead(all);
    about.textContent = state.effects.about ?? "";
    const rowsByArm = Object.fromEntries((state.effects.rows ?? []).map((row) => [row.arm, row]));
    arms.fill(state.study.arms.map((arm) => {
      const runsOfArm = all.filter((run) => run.arm === arm);
      const none = { change: "", effect: "-", interval: "-", verdict: "interim", mark: "", evidence: "", runs: `0/${state.study.seeds.length}` };
      return { ...none, ...rowsByArm[arm], arm, step: runsOfArm.length ? Math.min(...runsOfArm.map(reached)) : 0, diverged: count(runsOfArm, "diverged"), train: last(runsOfArm, "train/loss"), shown: last(runsOfArm, series()) };
    }));
    runs.fill(all);
    forest.update(state.effects.forest ? { "Forest plot of the effects in the table below": state.effects.forest } : {}, state.effects.themes);
    drawings.update(state.effects.pictures ?? {}, state.effects.themes);
    const inside = all.filter((run) => run.arm.includes(wanted.value) && run.series[metric]);
    const groups = grouped(inside, (run) => (shown.value === "arm" ? run.arm : `${run.arm}/${run.seed}`));
    if (metric) curves.update([...groups].flatMap(([label, members]) => line(label, members.map((run) => run.series[metric]))), titleOf(state.study, metric));
  }
  listen(name, (kind, data) => { main.state = state = fold(state, kind, data); timer ??= setTimeout(draw, 100); });
}

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}

async function oneRun(studyName, arm, run) {
  const data = await fetched(`/data/run/${url(studyName, arm, run)}`);
  const title = `${arm}/${data.seed}`;
  const curves = chart(`Curves of ${title}`);
  const picked = h("select", { onchange: () => draw() }, metricsOf([data]).map((name) => h("option", { value: name, selected: name === "train/loss" }, labelOf(data, name))));
  const draw = () => picked.value && curves.update(line(title, [data.series[picked.value]]), titleOf(data, picked.value));
  const facts = (values) => h("dl", {}, Object.entries(values).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, short(value))]));
  const samples = Object.entries(data.samples).reverse();
  show(title, h("p", { class: "soft" }, "of ", h("a", { href: `/study/${url(studyName)}` }, studyName), `: ${data.status}${data.steps ? ` after ${data.steps} steps` : ""}`),
    h("h2", {}, "Curves"), h("div", { class: "bar" }, h("label", {}, "Metric", picked)), curves.node,
    ...(Object.keys(data.metrics).length ? [h("h2", {}, "Last values"), facts(data.metrics)] : []),
    ...(samples.length ? [h("h2", {}, "Samples"), ...samples.map(([step, text], i) => h("details", { open: i === 0 }, h("summary", {}, `step ${step}`), h("pre", {}, text)))] : []),
    h("h2", {}, "Settings"), facts(data.settings));
  draw();
}

const key = (row) => `${row.study}/${row.arm}/${row.run}`;
const address = (row) => `${row.study}/${row.arm}/${row.seed}`;

async function allRuns() {
  const { columns, rows, problems } = await fetched("/data/runs");
  const chosen = new Set(new URLSearchParams(location.search).getAll("run").filter((run) => rows.some((row) => key(row) === run)));
  const curves = chart("Curves of the chosen runs");
  const metrics = metricsOf(rows);
  const picked = h("select", { onchange: () => compare() }, [...new Set(["train/loss", ...metrics])].map((name) => h("option", { value: name, selected: name === (metrics.includes("val_sample/loss") ? "val_sample/loss" : "val/loss") }, name)));
  const picker = h("div", { class: "bar" }, h("label", {}, "Metric", picked));
  const beside = h("div");
  const details = new Map();
  async function compare() {
    const runs = rows.filter((row) => chosen.has(key(row)));
    history.replaceState(null, "", `?${new URLSearchParams(runs.map((row) => ["run", key(row)]))}`); // for bookmarks and links
    picker.hidden = curves.node.hidden = !runs.length;
    for (const row of runs) if (!details.has(key(row))) details.set(key(row), await fetched(`/data/run/${url(row.study, row.arm, row.run)}`));
    const differ = columns.filter((path) => runs.some((row) => JSON.stringify(row.settings[path]) !== JSON.stringify(runs[0].settings[path])));
    beside.replaceChildren(runs.length < 2 ? h("p", { class: "soft" }, "Choose runs in the table to compare them.") : !differ.length ? h("p", { class: "soft" }, "These runs differ only in the seed.") : h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Settings that differ" }, h("table", {}, h("caption", {}, "Settings that differ"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), runs.map((row) => h("th", { scope: "col" }, address(row))))),
      h("tbody", {}, differ.map((path) => h("tr", {}, h("th", { scope: "row" }, path), runs.map((row) => h("td", {}, short(row.settings[path])))))))));
    curves.update(runs.flatMap((row) => line(address(row), [details.get(key(row)).series[picked.value] ?? [[], []]])), picked.value);
  }
  const list = table("Runs", [
    { name: "run", value: (r) => `${r.arm}/${r.seed}`, cell: (r) => h("span", {}, h("input", { type: "checkbox", "aria-label": `compare ${address(r)}`, checked: chosen.has(key(r)), onchange: (e) => { e.target.checked ? chosen.add(key(r)) : chosen.delete(key(r)); compare(); } }), " ", h("a", { href: `/run/${url(r.study, r.arm, r.run)}` }, `${r.arm}/${r.seed}`)) },
    { name: "study", value: (r) => r.study, cell: (r) => h("a", { href: `/study/${url(r.study)}` }, r.study) },
    { name: "status", value: (r) => r.status },
    ...metrics.filter((name) => /^(val|test)\//.test(name)).map((name) => ({ name, value: (r) => r.metrics[name], cell: (r) => digits(r.metrics[name]), figure: true })),
    ...columns.map((path) => ({ name: path, value: (r) => r.settings[path] })),
  ]);
  show("Runs", ...problems.map((text) => h("p", { class: "notice" }, prose(text))), h("h2", {}, "Comparison"), beside, picker, curves.node, list.node);
  list.fill(rows);
  await compare();
}

const [, page, ...rest] = location.pathname.split("/").map(decodeURIComponent);
const open = { "": studies, study, run: oneRun, runs: allRuns }[page];
Promise.resolve().then(() => open(...rest)).catch((error) => show("Not found", h("p", { class: "notice" }, prose(error.message))));
