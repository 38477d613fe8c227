// Draws the charts from the data in the page, in the colours of the reader's light or dark setting.
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

function spec(place) {
  if (place.dataset.chart !== "curve") return data.charts[place.dataset.chart];
  const { metric, arm } = place.dataset;
  const { spec, arms, ranges } = data.curves[metric];
  const baseline = arms[data.baselines[arm]] ?? [];
  const [low, high] = ranges[arm];
  const values = { colour: data.colours[data.verdicts[arm] ?? "baseline"], low, high };
  const params = Object.entries(values).map(([name, value]) => ({ name, value }));
  return { ...spec, datasets: { arm: arms[arm], baseline }, params };
}

async function draw() {
  const theme = dark.matches ? data.themes.dark : data.themes.light;
  const narrow = innerWidth < 600;
  const config = { ...theme, axisY: { labelLimit: narrow ? 110 : 240 } };
  for (const place of document.querySelectorAll("[data-chart]")) {
    // `ast` has Vega interpret expressions, which the page's security policy asks for.
    await vegaEmbed(place, spec(place), { ast: true, actions: false, renderer: "svg", defaultStyle: false, config });
  }
}

dark.addEventListener("change", draw);
draw();
