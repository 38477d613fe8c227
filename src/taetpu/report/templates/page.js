// Draw the charts from the data in the page, in the colours of the light or dark theme. A chart is drawn when it comes
// near the viewport. Before printing, all charts are drawn.
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map();

function rows(columns) {
  const names = Object.keys(columns ?? {});
  return names.length ? columns[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]]))) : [];
}

function spec(place, theme) {
  const { chart, metric, arm } = place.dataset;
  if (metric === undefined) return data.charts[chart] ?? data.frontiers[chart];
  const curves = data.curves[metric];
  const difference = chart === "difference";
  const [low, high] = (difference ? curves.difference_ranges : curves.ranges)[arm];
  const values = { colour: data.colours[theme][data.verdicts[arm] ?? "baseline"], low, high };
  const params = Object.entries(values).map(([name, value]) => ({ name, value }));
  const columns = difference
    ? { arm: curves.differences[arm] }
    : { arm: curves.arms[arm], baseline: curves.arms[data.baselines[arm] ?? arm], seeds: curves.seeds[arm] };
  const datasets = Object.fromEntries(Object.entries(columns).map(([name, table]) => [name, rows(table)]));
  return { ...curves[chart], datasets, params };
}

async function draw(place, theme = dark.matches ? "dark" : "light") {
  if (drawn.get(place) === theme) return;
  drawn.set(place, theme);
  const config = data.themes[theme];
  // `ast` makes Vega interpret expressions, as the content security policy requires.
  await vegaEmbed(place, spec(place, theme), { ast: true, actions: false, renderer: "svg", defaultStyle: false, config });
  place.querySelector("svg").setAttribute("aria-hidden", "true"); // the container has the label, and the tables have the data
}

// Any two columns of costs: if a reader chooses one column twice, the other axis takes the column that it replaces.
document.querySelectorAll(".frontier").forEach((figure) => {
  const [y, x] = ["y", "x"].map((name) => figure.querySelector(`[data-axis=${name}]`));
  const place = figure.querySelector(".chart");
  let before = [x.value, y.value];
  figure.addEventListener("change", ({ target }) => {
    if (x.value === y.value) (target === x ? y : x).value = before[target === x ? 0 : 1];
    before = [x.value, y.value];
    place.dataset.chart = before.join(" ");
    drawn.delete(place);
    draw(place);
  });
});

const places = [...document.querySelectorAll("[data-chart]")];
const near = new IntersectionObserver((seen) => seen.forEach(({ isIntersecting, target }) => isIntersecting && draw(target)), { rootMargin: "400px" });
places.forEach((place) => near.observe(place));
dark.addEventListener("change", () => [...drawn.keys()].forEach((place) => draw(place)));

// Print in the light theme. Folded warnings and tables are expanded, but the details of arms are printed only if the reader expanded them.
const shown = () => places.filter((place) => place.checkVisibility());
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("main details:not(.arm):not([open])")];
  unfolded.forEach((part) => { part.open = true; });
  shown().forEach((place) => draw(place, "light"));
});
addEventListener("afterprint", () => {
  unfolded.forEach((part) => { part.open = false; });
  shown().forEach((place) => draw(place));
});

// The contents are a column beside a wide page, and a menu above a narrow page.
const wide = matchMedia("(min-width: 1100px)");
const contents = document.querySelector(".contents");
const arrange = () => { contents.open = wide.matches; };
wide.addEventListener("change", arrange);
contents.querySelectorAll("a").forEach((link) => link.addEventListener("click", arrange));
arrange();

// Tables that are wider than the page get a hint.
const measure = new ResizeObserver((seen) => seen.forEach(({ target }) => target.classList.toggle("more", target.scrollWidth > target.clientWidth + 1)));
document.querySelectorAll(".wide").forEach((table) => measure.observe(table));

// A link to an arm expands its section.
function unfold() {
  const part = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (part?.tagName === "DETAILS") part.open = true;
}
addEventListener("hashchange", unfold);
unfold();
