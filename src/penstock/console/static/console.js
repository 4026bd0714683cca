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

  // New records above the others, as text: 200 rows at most.
  function follow(button) {
    const rows = document.getElementById("rows"), told = button.nextElementSibling;
    let source = null, count = 0, skipped = 0;
    const stop = (text) => { source?.close(); source = null; button.textContent = "Follow new records"; told.textContent = text; };
    const cell = (row, text, kind) => { const made = row.insertCell(); made.className = kind; made.textContent = text; return made; };
    button.parentElement.hidden = false;
    addEventListener("pagehide", () => source?.close());
    button.addEventListener("click", () => {
      if (source) return stop("");
      source = new EventSource(button.dataset.follow);
      button.textContent = "Stop";
      told.textContent = "waiting for records";
      source.addEventListener("over", (event) => stop(JSON.parse(event.data)));
      source.onerror = () => { if (source?.readyState === EventSource.CLOSED) stop("this cannot be followed now: too many browsers do"); };
      source.onmessage = (event) => {
        const news = JSON.parse(event.data);
        for (const one of news.rows) {
          const row = rows.insertRow(0), link = document.createElement("a");
          link.href = `${button.dataset.record}&partition=${one.partition}&offset=${one.offset}`;
          link.textContent = `${one.partition}:${one.offset}`;
          cell(row, "", "num").append(link);
          cell(row, one.time.slice(0, 19) + "Z", "");
          cell(row, one.key ?? "none", "text mono");
          cell(row, one.value ?? "tombstone", "text mono");
          cell(row, one.size === null ? "-" : one.size.toLocaleString("en"), "num");
          cell(row, one.headers, "num");
        }
        while (rows.rows.length > 200) rows.deleteRow(-1);
        count += news.rows.length;
        skipped += news.skipped;
        told.textContent = `${count} new` + (skipped ? `, ${skipped} passed over` : "");
      };
    });
  }

  // Filters that this browser keeps, the last 50, for all topics.
  function keepFilters(box) {
    const form = box.querySelector("form"), list = box.querySelector("ul"), key = "penstock-filters";
    const read = () => { try { return JSON.parse(localStorage.getItem(key)) ?? []; } catch { return []; } };
    const write = (kept) => { try { localStorage.setItem(key, JSON.stringify(kept.slice(-50))); } catch { return; } show(); };
    function show() {
      list.replaceChildren(...read().map((one) => {
        const item = document.createElement("li"), link = document.createElement("a"), drop = document.createElement("button");
        link.href = "/records?" + one.query;
        link.textContent = one.name;
        drop.className = "plain";
        drop.textContent = "remove";
        drop.addEventListener("click", () => write(read().filter((each) => each.name !== one.name)));
        item.append(link, " ", drop);
        return item;
      }));
    }
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const query = new URLSearchParams(location.search), name = form.elements.name.value.trim().slice(0, 100);
      query.delete("at");
      if (name) write([...read().filter((each) => each.name !== name), { name, query: query.toString() }]);
      form.reset();
    });
    box.hidden = false;
    show();
  }

  document.querySelectorAll("[data-filters]").forEach(keepFilters);
  document.querySelectorAll("[data-follow]").forEach(follow);
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
