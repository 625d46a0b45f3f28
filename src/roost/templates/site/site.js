// Sorting, filtering and drawing for every page of the site. No page needs it to be read.
(() => {
  "use strict";

  // --- tables ---------------------------------------------------------------------------------

  const value = (row, at) => {
    const cell = row.cells[at];
    return cell ? (cell.dataset.value ?? cell.textContent.trim()) : "";
  };
  const number = (text) => (text === "" ? NaN : Number(text.replaceAll(",", "")));

  function sort(table, at, ascending) {
    const rows = [...table.tBodies[0].rows];
    const keys = new Map(rows.map((row) => [row, value(row, at)]));
    const numeric = rows.every((row) => keys.get(row) === "" || !isNaN(number(keys.get(row))));
    rows.sort((one, other) => {
      const [a, b] = [keys.get(one), keys.get(other)];
      // What has no value comes last, whichever way round.
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = numeric
        ? number(a) - number(b)
        : a.localeCompare(b, "en", { numeric: true });
      return ascending ? order : -order;
    });
    table.tBodies[0].append(...rows);
  }

  for (const table of document.querySelectorAll("table.sortable, .notebook table")) {
    const head = table.tHead && table.tHead.rows[0];
    if (!head || table.tBodies.length !== 1) continue;
    [...head.cells].forEach((cell, at) => {
      if (!cell.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const ascending = cell.ariaSort !== "ascending";
        for (const other of head.cells) other.removeAttribute("aria-sort");
        cell.ariaSort = ascending ? "ascending" : "descending";
        sort(table, at, ascending);
      });
    });
  }

  const filters = [...document.querySelectorAll("select[data-filter]")];
  function filter() {
    for (const row of document.querySelectorAll("tr[data-run]")) {
      row.hidden = filters.some(
        (one) => one.value && row.dataset[one.dataset.filter] !== one.value,
      );
    }
    const shown = document.querySelector("#shown");
    if (shown) {
      const rows = [...document.querySelectorAll("#runs tbody tr")];
      const left = rows.filter((row) => !row.hidden).length;
      shown.textContent = `${left} of ${rows.length} runs`;
    }
  }
  for (const one of filters) one.addEventListener("change", filter);
  if (filters.length) filter();

  // --- charts ---------------------------------------------------------------------------------

  const css = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function layout(given) {
    const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), automargin: true,
      ticks: "outside", tickcolor: "rgba(0,0,0,0)" };
    const ink = css("--ink");
    return {
      ...given,
      font: { color: ink, family: "system-ui, sans-serif", size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      colorway: css("--series").split(","),
      hoverlabel: { bgcolor: css("--panel"), bordercolor: ink, font: { color: ink } },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
      margin: { l: 10, r: 10, t: 10, b: 10 },
      // A finger that drags means to scroll.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      shapes: (given.shapes || []).map((shape) => ({ ...shape, line: { color: ink, width: 1 } })),
      xaxis: { ...axis, ...given.xaxis },
      yaxis: { ...axis, ...given.yaxis },
    };
  }

  const coloured = (trace) => {
    const colour = trace.meta ? css(trace.meta) : undefined;
    return colour ? { ...trace, marker: { ...trace.marker, color: colour } } : trace;
  };

  // Long names of rows take several lines where there is little room, and the rows more height.
  const NARROW = 500, LINE = 20;
  const wrap = (text) =>
    text.match(new RegExp(`\\S{${LINE},}|.{1,${LINE}}(?=\\s|$)`, "g"))
      .flatMap((line) => line.match(new RegExp(`.{1,${LINE + 4}}`, "g")))
      .map((line) => line.trim());

  function rows(plot, data, axis) {
    if (axis.type !== "category" || plot.clientWidth >= NARROW) return {};
    const names = axis.categoryarray || [...new Set(data.flatMap((trace) => trace.y))];
    const lines = names.map(wrap);
    const most = Math.max(...lines.map((one) => one.length));
    if (most > 1) plot.style.height = `${130 + names.length * (8 + 15 * most)}px`;
    return {
      range: [-0.6, names.length - 0.4],
      tickvals: names,
      ticktext: lines.map((one) => one.join("<br>")),
    };
  }

  const charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => {
    const options = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot");
    const chooser = figure.querySelector("select");
    const draw = () => {
      const { data, layout: given } = options[chooser ? Number(chooser.value) : 0];
      const drawn = layout(given);
      Object.assign(drawn.yaxis, rows(plot, data, drawn.yaxis));
      Plotly.react(plot, structuredClone(data.map(coloured)), drawn, {
        responsive: true,
        displayModeBar: false,
      });
    };
    if (chooser) chooser.addEventListener("change", draw);
    return draw;
  });
  const drawAll = () => charts.forEach((draw) => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
