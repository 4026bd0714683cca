"use strict";
// Live figures, charts and keys. Every page can be read without it.
(() => {
  const dot = document.getElementById("live");
  const charts = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  async function draw(box) {
    const answer = await fetch(box.dataset.chart);
    if (!answer.ok) return;
    const known = await answer.json();
    const data = [known.at, known[box.dataset.series]];
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const plot = new uPlot({
      width: Math.max(box.clientWidth, 100), height: 170, legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_u, _low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [axis, { ...axis, size: 60, values: (_u, ticks) => ticks.map((v) => v >= 1e6 ? v / 1e6 + "M" : v >= 1e3 ? v / 1e3 + "k" : v) }],
      series: [{}, { stroke: color("--link"), width: 2, points: { show: false } }],
    }, data, box);
    charts.push({ box, plot, data });
    new ResizeObserver(() => plot.setSize({ width: Math.max(box.clientWidth, 100), height: 170 })).observe(box);
  }

  function hear(news) {
    dot.className = "dot " + (news.away ? "off" : "on");
    dot.title = news.away ? "the node is away" : "live";
    if (document.querySelector("[data-until-seen]")) { // made before the node was looked at
      if (!news.away) location.reload();
      return;
    }
    const verdict = document.getElementById("verdict");
    if (verdict) {
      verdict.textContent = news.verdict;
      verdict.className = "verdict " + (news.well ? "well" : "ill");
    }
    for (const [key, [value, note, wrong]] of Object.entries(news.tiles)) {
      const tile = document.querySelector(`[data-tile="${key}"]`);
      if (!tile || news.away) continue;
      tile.querySelector(".value").textContent = value;
      tile.querySelector(".info").textContent = note;
      tile.classList.toggle("wrong", wrong);
    }
    if (news.away) return;
    for (const { box, plot, data } of charts) {
      if (!box.dataset.live || data[0].at(-1) >= news.at) continue;
      data[0].push(news.at);
      data[1].push(news[box.dataset.live] ?? 0);
      if (data[0].length > 300) data.forEach((column) => column.shift());
      plot.setData(data);
    }
  }

  document.querySelectorAll("[data-chart]").forEach((box) => draw(box));
  document.querySelectorAll("[data-typed]").forEach((field) => {
    const button = field.form.querySelector("button.do");
    const check = () => { button.disabled = field.value !== field.dataset.typed; };
    field.addEventListener("input", check);
    check();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    const field = document.querySelector("[data-search]");
    if (field) { event.preventDefault(); field.focus(); }
  });
  // A form is sent once: a second press of its button changes nothing.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
    setTimeout(() => { delete form.dataset.sent; }, 3000);
  });
  if (dot && location.pathname !== "/login") {
    const source = new EventSource("/live");
    source.onmessage = (event) => hear(JSON.parse(event.data));
    source.onerror = () => { dot.className = "dot off"; dot.title = "the console is away"; };
    addEventListener("pagehide", () => source.close());
  }
})();
