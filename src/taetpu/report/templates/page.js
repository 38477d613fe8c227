// Draw the charts from the data in the page, in the colours of the light or dark theme. A chart is drawn when it comes
// near the viewport. Before printing, all charts are drawn.
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map();

function rows(columns) {
  const names = Object.keys(columns ?? {});
  return names.length ? columns[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]]))) : [];
}

function spec(place) {
  const { chart, metric, arm } = place.dataset;
  if (metric === undefined) return data.charts[chart];
  const found = data.curves[metric];
  const difference = chart === "difference";
  const [low, high] = (difference ? found.difference_ranges : found.ranges)[arm];
  const values = { colour: data.colours[data.verdicts[arm] ?? "baseline"], low, high };
  const params = Object.entries(values).map(([name, value]) => ({ name, value }));
  const columns = difference
    ? { arm: found.differences[arm] }
    : { arm: found.arms[arm], baseline: found.arms[data.baselines[arm] ?? arm], seeds: found.seeds[arm] };
  const datasets = Object.fromEntries(Object.entries(columns).map(([name, table]) => [name, rows(table)]));
  return { ...found[chart], datasets, params };
}

async function draw(place, theme = dark.matches ? "dark" : "light") {
  if (drawn.get(place) === theme) return;
  drawn.set(place, theme);
  const config = data.themes[theme];
  // `ast` makes Vega interpret expressions, as the content security policy requires.
  await vegaEmbed(place, spec(place), { ast: true, actions: false, renderer: "svg", defaultStyle: false, config });
  place.querySelector("svg").setAttribute("aria-hidden", "true"); // the container has the label, and the tables have the data
}

const places = [...document.querySelectorAll("[data-chart]")];
const near = new IntersectionObserver((seen) => seen.forEach(({ isIntersecting, target }) => isIntersecting && draw(target)), { rootMargin: "400px" });
places.forEach((place) => near.observe(place));
dark.addEventListener("change", () => [...drawn.keys()].forEach((place) => draw(place)));

// Print in the light theme, and print only expanded sections.
const shown = () => places.filter((place) => place.checkVisibility());
addEventListener("beforeprint", () => shown().forEach((place) => draw(place, "light")));
addEventListener("afterprint", () => shown().forEach((place) => draw(place)));

// A link to an arm expands its section.
function unfold() {
  const part = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (part?.tagName === "DETAILS") part.open = true;
}
addEventListener("hashchange", unfold);
unfold();
