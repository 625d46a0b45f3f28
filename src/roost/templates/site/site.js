// Sorting, filtering and drawing for every page of the site. No page needs it to be read.
(() => {
  "use strict";

  // --- tables ---------------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });
  const number = (key) => (key === "" ? NaN : Number(String(key).replaceAll(",", "")));

  // Places in another order, by each one's key: a number, or text that may be one.
  function ordered(places, keys, ascending) {
    let ranks = keys.map(number);
    if (ranks.some((rank, at) => isNaN(rank) && keys[at] !== "")) {
      const texts = [...new Set(keys)].sort(collator.compare);
      const ranked = new Map(texts.map((text, rank) => [text, rank]));
      ranks = keys.map((key) => (key === "" ? NaN : ranked.get(key)));
    }
    return places.sort((one, other) => {
      const [a, b] = [ranks[one], ranks[other]];
      // What has no value comes last, whichever way round.
      if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
      return ascending ? a - b : b - a;
    });
  }

  // Buttons in a table's head; `sort` is told of a column, and whether it ascends.
  function sortable(table, sort) {
    const head = table.tHead.rows[0];
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
        sort(at, ascending);
      });
    });
  }

  for (const table of document.querySelectorAll("table.sortable, .notebook table")) {
    if (!table.tHead || !table.tHead.rows.length || table.tBodies.length !== 1) continue;
    sortable(table, (at, ascending) => {
      const rows = [...table.tBodies[0].rows];
      const keys = rows.map(({ cells }) =>
        cells[at] ? (cells[at].dataset.value ?? cells[at].textContent.trim()) : "");
      const places = ordered([...rows.keys()], keys, ascending);
      table.tBodies[0].append(...places.map((place) => rows[place]));
    });
  }

  // --- charts ---------------------------------------------------------------------------------

  // What draws, once the charts' library is read.
  const draws = [];
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

  // A colour that says something is the trace's own. Where there are more lines than colours, the
  // next ones are told by their dashes and marks.
  const DASHES = ["solid", "dot", "dash", "longdash"], SYMBOLS = ["circle", "diamond", "square", "x"];

  function coloured(trace, at) {
    const round = Math.floor(at / css("--series").split(",").length);
    const marker = { symbol: SYMBOLS[round % SYMBOLS.length], ...trace.marker };
    if (trace.meta) marker.color = css(trace.meta);
    return { ...trace, marker, line: { dash: DASHES[round % DASHES.length], ...trace.line } };
  }

  // Long names of rows take several lines, and the rows more height: most of the room is the plot's.
  const wrap = (text, size) =>
    (text.match(new RegExp(`\\S{${size},}|.{1,${size}}(?=\\s|$)`, "g")) ?? [text])
      .flatMap((line) => line.match(new RegExp(`.{1,${size + 4}}`, "g")) ?? [line])
      .map((line) => line.trim());

  function rows(plot, data, axis) {
    if (axis.type !== "category") return {};
    const names = axis.categoryarray || [...new Set(data.flatMap((trace) => trace.y))];
    // A letter is about seven pixels wide; a plot that is not shown has no width.
    const size = Math.max(8, Math.floor((0.35 * plot.clientWidth) / 7));
    const lines = names.map((name) => wrap(name, size));
    const most = Math.max(...lines.map((one) => one.length));
    if (most === 1) return {};
    plot.style.height = `${130 + names.length * (8 + 15 * most)}px`;
    return {
      range: [-0.6, names.length - 0.4],
      tickvals: names,
      ticktext: lines.map((one) => one.join("<br>")),
    };
  }

  function drawn(plot, data, given) {
    const made = layout(given);
    Object.assign(made.yaxis, rows(plot, data, made.yaxis));
    Plotly.react(plot, structuredClone(data.map(coloured)), made, {
      responsive: true,
      displayModeBar: false,
    });
  }

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const options = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot");
    const chooser = figure.querySelector("select");
    const draw = () => {
      const { data, layout: given } = options[chooser ? Number(chooser.value) : 0];
      drawn(plot, data, given);
    };
    if (chooser) chooser.addEventListener("change", draw);
    draws.push(draw);
  }

  // --- the index: more runs than a page can hold, so that some stand in it at a time -------------

  // Figures over time, one at a time, with a line a host. Without what was only tried: a search
  // would look like a host that comes and goes.
  const MARKS = 1200, HEIGHT = 320, DAY = 24 * 3600e3;
  const escaped = (text) => text.replace(/[&<>]/g, (one) => `&#${one.charCodeAt(0)};`);

  function overTime(home, { runs, points, metrics }) {
    const tried = new Set(runs.tried);
    const groups = new Map();
    points.run.forEach((run, at) => {
      if (tried.has(run) || metrics.every(({ value }) => value[at] === null)) return;
      const of = `${runs.recipe[run]}, ${runs.hardware[run]}, ${runs.speculation[run]}: ${runs.suite[run]}`;
      if (!groups.has(of)) groups.set(of, new Map());
      const group = groups.get(of);
      if (!group.has(points.point[at])) group.set(points.point[at], []);
      group.get(points.point[at]).push(at);
    });
    const plot = home.querySelector(".plot");
    const selects = [...home.querySelectorAll("select")];
    const [of, point, metric] = selects;
    let chosen = () => true;

    function offer(select, texts) {
      const before = select.value;
      select.replaceChildren(...texts.map((text) => new Option(text, text)));
      if (texts.includes(before)) select.value = before;
    }

    // Where a line has more runs than can be told apart, of each span of it the lowest and the
    // highest, and the newest: one bad night stays in sight.
    function thinned(line, value, spans) {
      if (line.length <= 2 * spans) return line;
      const kept = new Set([line.length - 1]);
      for (let span = 0; span < spans; span++) {
        const [from, to] = [span, span + 1].map((end) => Math.floor((end * line.length) / spans));
        let [low, high] = [from, from];
        for (let at = from; at < to; at++) {
          if (value[line[at]] < value[line[low]]) low = at;
          if (value[line[at]] > value[line[high]]) high = at;
        }
        kept.add(low).add(high);
      }
      return line.filter((_, at) => kept.has(at));
    }

    function draw() {
      offer(of, [...groups.keys()]);
      offer(point, [...groups.get(of.value).keys()]);
      const all = groups.get(of.value).get(point.value);
      const name = ({ title, unit }) => `${title} (${unit})`;
      const known = metrics.filter(({ value }) => all.some((at) => value[at] !== null));
      offer(metric, known.map(name));
      const { unit, value, low, high } = known.find((one) => name(one) === metric.value);

      const lines = new Map();
      // The newest is first in a table, and last in a line.
      for (const at of [...all].reverse()) {
        const host = runs.host[points.run[at]];
        if (value[at] === null || !chosen(at)) continue;
        if (!lines.has(host)) lines.set(host, []);
        lines.get(host).push(at);
      }
      const hosts = [...lines.keys()].sort(collator.compare);
      const spans = Math.max(10, Math.floor(MARKS / 2 / hosts.length));
      const words = [];
      const data = hosts.map((host) => {
        const line = lines.get(host);
        const values = line.map((at) => value[at]);
        words.push(`${host} ${line.length} run${line.length > 1 ? "s" : ""}, ` +
          `${short(Math.min(...values))} to ${short(Math.max(...values))}, the newest ${short(values.at(-1))}`);
        const some = thinned(line, value, spans);
        const ends = (end) => some.map((at) => (end[at] === null ? 0 : Math.abs(end[at] - value[at])));
        return {
          type: "scatter",
          // Of a long line marks and intervals would hide the line.
          ...(some.length < line.length
            ? { mode: "lines", line: { width: 1 } }
            : {
                mode: "lines+markers",
                error_y: { type: "data", array: ends(high), arrayminus: ends(low), width: 3 },
              }),
          name: escaped(host),
          x: some.map((at) => runs.started[points.run[at]]),
          y: some.map((at) => value[at]),
          text: some.map((at) => range(low[at], high[at])),
          hovertemplate: "%{y:.4g}<br>%{text}<extra>%{fullData.name}</extra>",
        };
      });
      const times = data.flatMap(({ x }) => x).sort();
      const ends = [times[0], times.at(-1)].map((time) => Date.parse(`${time}Z`));
      // Around a single moment Plotly would show milliseconds.
      const day = ends[1] - ends[0] < DAY ? { range: [ends[0] - DAY / 2, ends[1] + DAY / 2] } : {};
      // A name of the legend takes about this much; its lines must not take the plot's room.
      const wide = 50 + 7 * Math.max(...hosts.map((host) => host.length));
      const legend = Math.ceil(hosts.length / Math.max(1, Math.floor(plot.clientWidth / wide)));
      plot.style.height = `${HEIGHT + 20 * legend}px`;
      drawn(plot, data, {
        showlegend: true,
        xaxis: { type: "date", title: { text: "UTC" }, ...day },
        yaxis: { title: { text: unit }, rangemode: "tozero" },
      });
      plot.setAttribute("aria-label",
        `${metric.value} over time, ${of.value} ${point.value}: ${words.join("; ") || "no run"}`);
      home.querySelector("figcaption").textContent =
        data.every(({ mode }) => mode === "lines+markers")
          ? "Medians with 95 % intervals, a line a host."
          : `Medians, a line a host; of a long line the lowest and the highest of each of ${spans} ` +
            "spans are drawn. The search and the filters leave fewer lines; the table has every run.";
    }

    if (groups.size) {
      home.hidden = false;
      for (const select of selects) select.addEventListener("change", draw);
      draws.push(draw);
    }
    let waiting;
    return {
      choose(test) {
        chosen = test;
        // Not at each letter.
        clearTimeout(waiting);
        if (groups.size && typeof Plotly !== "undefined") waiting = setTimeout(draw, 300);
      },
    };
  }

  // An element whose id is INDEX would be a variable of that name, too.
  const index = typeof INDEX !== "undefined" && Array.isArray(INDEX.runs?.href) ? INDEX : null;
  const whole = (column) => column.at.map((at) => column.texts[at]);
  const grouped = new Intl.NumberFormat("en");
  const short = (value) => {
    const size = Math.abs(value);
    const digits = value === 0 || size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };

  const range = (low, high) => (low === null || high === null ? "" : `${short(low)} to ${short(high)}`);

  // A table of which a page is shown. A column has each row's key, to sort by, and what puts a row
  // into a cell; rows are made like the first that stands there.
  function paged(table, count, columns) {
    const body = table.tBodies[0];
    const pattern = body.rows[0];
    const size = body.rows.length;
    const pager = document.querySelector(`[data-pages=${table.id}]`);
    let places = Array.from({ length: count }, (_, at) => at);
    let chosen = () => true;
    let left = places;
    let first = 0;

    function show(from) {
      first = Math.max(0, Math.min(from, Math.ceil(left.length / size) * size - size));
      body.replaceChildren(...left.slice(first, first + size).map((place) => {
        const row = pattern.cloneNode(true);
        columns.forEach((column, at) => column.fill(row.cells[at], place));
        return row;
      }));
      table.parentElement.scrollTop = 0;
      turn();
    }

    function turn() {
      const [from, to] = [Math.min(first + 1, left.length), Math.min(first + size, left.length)];
      pager.hidden = count <= size;
      pager.querySelector("span").textContent =
        `${grouped.format(from)} to ${grouped.format(to)} of ${grouped.format(left.length)}`;
      // Not disabled: that would take the focus from who pages with the keyboard.
      for (const button of pager.querySelectorAll("button")) {
        const there = ["first", "previous"].includes(button.dataset.go) ? from <= 1 : to >= left.length;
        button.setAttribute("aria-disabled", there);
      }
    }

    pager.addEventListener("click", ({ target }) => {
      const to = { first: 0, previous: first - size, next: first + size, last: left.length };
      if (target.getAttribute("aria-disabled") === "false") show(to[target.dataset.go]);
    });
    sortable(table, (at, ascending) => {
      const { keys } = columns[at];
      places = ordered(places, keys.map((key) => key ?? ""), ascending);
      left = places.filter(chosen);
      show(0);
    });
    turn();
    return {
      choose(test) {
        chosen = test;
        left = places.filter(chosen);
        show(0);
        return left.length;
      },
    };
  }

  const text = (keys) => ({ keys, fill: (cell, at) => { cell.textContent = keys[at]; } });
  const same = (column, of) => ({ keys: of.map((at) => column.keys[at]), fill: (cell, at) => column.fill(cell, of[at]) });

  if (index) {
    const { runs, points, metrics } = index;
    for (const name of ["outcome", "failed", "all_failed", "engine", "host", "kind", "recipe", "hardware", "speculation", "suite"]) {
      runs[name] = whole(runs[name]);
    }
    points.point = whole(points.point);

    const started = {
      keys: runs.started,
      fill(cell, at) {
        const link = cell.querySelector("a");
        link.href = runs.href[at];
        link.textContent = runs.called[at];
        cell.classList.toggle("text", !runs.started[at].startsWith(runs.called[at]));
      },
    };
    const outcome = {
      keys: runs.outcome,
      fill(cell, at) {
        const said = runs.outcome[at];
        cell.dataset.state = said;
        cell.textContent = ({ passed: "✓ ", failed: "✗ " }[said] ?? "") + said;
      },
    };
    const seconds = {
      keys: runs.seconds,
      fill(cell, at) {
        const took = runs.seconds[at];
        cell.textContent = took === null ? "" : grouped.format(Math.round(took));
      },
    };
    const measured = ({ value, low, high }) => ({
      keys: value,
      fill(cell, at) {
        cell.textContent = value[at] === null ? "" : short(value[at]);
        const interval = document.createElement("span");
        interval.className = "quiet";
        interval.textContent = range(low[at], high[at]);
        cell.append(interval);
      },
    });
    const columns = Object.fromEntries(
      ["host", "kind", "recipe", "hardware", "speculation", "suite", "engine"]
        .map((name) => [name, text(runs[name])]));

    const home = document.querySelector("#time");
    const chart = home ? overTime(home, index) : null;
    const tables = [paged(document.querySelector("#runs"), runs.href.length, [
      started, outcome, columns.host, columns.kind, { ...text(runs.failed), keys: runs.failures },
      columns.recipe, columns.hardware, columns.speculation, columns.suite, columns.engine, seconds,
    ])];
    if (points.run.length) {
      const shared = [started, columns.host, columns.recipe, columns.speculation, columns.suite];
      tables.push(paged(document.querySelector("#points"), points.run.length, [
        ...shared.map((column) => same(column, points.run)), text(points.point), ...metrics.map(measured),
      ]));
    }

    const search = document.querySelector("input[type=search]");
    const filters = [...document.querySelectorAll("select[data-filter]")];
    // As it is called, with its spaces and umlauts; a name that is no text stays an address.
    const plain = (href) => {
      try {
        return decodeURIComponent(href);
      } catch {
        return href;
      }
    };
    const said = runs.href.map((href, at) =>
      [plain(href), runs.called[at], ...Object.values(columns).map(({ keys }) => keys[at]), runs.outcome[at],
        runs.all_failed[at]].join("\n").toLowerCase());

    function filter() {
      const wanted = filters.filter((one) => one.value)
        .map((one) => [runs[one.dataset.filter], one.value]);
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const fits = said.map((_, at) => wanted.every(([column, value]) => column[at] === value));
      const left = tables[0].choose((at) => fits[at] && words.every((word) => said[at].includes(word)));
      document.querySelector("#shown").textContent =
        `${grouped.format(left)} of ${grouped.format(said.length)} runs`;
      if (tables.length > 1) {
        const test = (at) => fits[points.run[at]] && words.every((word) =>
          said[points.run[at]].includes(word) || points.point[at].toLowerCase().includes(word));
        tables[1].choose(test);
        chart?.choose(test);
      }
    }
    search.addEventListener("input", filter);
    for (const one of filters) one.addEventListener("change", filter);
    document.querySelector(".filters").hidden = false;
    // A browser that goes back to a page may have kept what was asked for.
    filter();
  }

  // One that cannot be drawn is told on the console, and leaves the others theirs.
  const drawAll = () => draws.forEach((draw) => {
    try {
      draw();
    } catch (error) {
      reportError(error);
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.addEventListener("DOMContentLoaded", drawAll);
  performance.mark("usable");
})();
