"use strict";
(() => {
  const root = document.documentElement, every = (query, of = document) => [...of.querySelectorAll(query)];
  root.classList.add("scripted");
  const hero = document.querySelector(".hero");
  if (hero) {
    const chart = JSON.parse(document.getElementById("chart").textContent);
    const slide = hero.querySelector(".read"), reading = hero.querySelector(".reading");
    const shown = hero.querySelector(".view"), frame = shown.querySelector(".frame"), svg = frame.querySelector("svg");
    const cells = every("input[name=cell]", hero), sliders = every("input[data-of]", hero);
    const chosen = name => hero.querySelector(`input[name=${name}]:checked`)?.value ?? "";
    const nat = 1e4;  // losses are in ten-thousandths of a nat
    const letters = 60;  // least distance of two labels, thousandths of the frame
    let at = 0.85, view = null;

    const scaled = (n, form) => {
      const [size, unit] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([size]) => n >= size) ?? [1, ""];
      return form(n / size) + unit;
    };
    const amount = (x, axis) => {
      if (axis === "hours") return x >= 0.1 ? `${x.toPrecision(3)} hours` : `${(3600 * x).toPrecision(3)} seconds`;
      return axis === "flops" ? `${x.toExponential(2)} FLOPs` : `${scaled(x, n => n.toPrecision(3))} ${chart.names[axis]}`;
    };
    const tick = (x, axis) => {
      const plain = n => `${+n.toPrecision(3)}`;
      if (axis === "flops") return x.toExponential(0).replace("+", "");
      return axis === "hours" && x < 1e-2 ? `${plain(3600 * x)} s` : scaled(x, plain);
    };
    const logTicks = (low, high) => {
      const found = [], ten = Math.log(10);
      for (let power = Math.floor(low / ten); power <= Math.floor(high / ten); power++)
        for (const k of [1, 2, 5]) found.push(k * 10 ** power);
      return found.filter(x => Math.log(x) >= low - 1e-9 && Math.log(x) <= high + 1e-9);
    };
    const ticks = (low, high) => {
      const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map(k => k * power).find(one => one >= raw), n = Math.max(0, -Math.floor(Math.log10(step)));
      const found = [];
      for (let i = Math.ceil(low / step); i <= Math.floor(high / step); i++) found.push([i * step, (i * step).toFixed(n)]);
      return found;
    };
    const middle = values => { const s = values.toSorted((a, b) => a - b), n = s.length; return (s[(n - 1) >> 1] + s[n >> 1]) / 2; };
    const mean = values => values.reduce((a, b) => a + b) / values.length;
    const place = (run, i, axis) => run.ends[axis] + run[axis === "hours" ? axis : "updates"][i] / 1000;

    const look = () => {  // the runs of the chosen cell, and the ranges of both axes
      const [axis, range, number] = [chosen("axis"), chosen("range"), chosen("cell")];
      const cell = chart.cells[number], runs = cell.runs.filter(run => axis in run.ends);
      if (!runs.length) return null;
      const high = Math.max(...runs.map(run => run.ends[axis]));
      let low = Math.max(range === "end" ? high - Math.log(16) : -Infinity, Math.min(...runs.map(run => place(run, 0, axis))));
      if (high - low < 1e-6) low = high - Math.log(2);
      const inside = runs.map(run => run.loss.filter((_, i) => place(run, i, axis) >= low - 1e-9)).filter(own => own.length);  // some runs end before the range
      const least = inside.flat().reduce((a, b) => Math.min(a, b)) / nat, start = Math.max(middle(inside.map(own => own[0])) / nat, least + 0.02);
      const ends = runs.map(run => run.loss.at(-1) / nat).filter(loss => loss < least + 4 * (start - least));  // not of a run that diverged
      const most = Math.max(start, ...ends);
      const bottom = least - 0.06 * (most - least), top = most + 0.02 * (most - least);
      return {
        axis, range, number, cell, runs, low, high, bottom, top, names: [...new Set(runs.map(run => run.attention))],
        gap: chart.gaps[axis]?.[chosen("against")]?.[number],
        across: x => 1000 * (x - low) / (high - low), down: loss => 1000 * (top - loss) / (top - bottom),
      };
    };
    const path = (kind, d, attention) => {
      const one = document.createElementNS(svg.namespaceURI, "path");
      one.setAttribute("class", kind); one.setAttribute("d", d);
      if (attention) one.dataset.attention = attention;
      svg.append(one);
    };
    const mark = (kind, text, style = {}, attention = "") => {
      const one = document.createElement("span");
      one.className = kind; one.append(text); Object.assign(one.style, style);
      if (attention) one.dataset.attention = attention;
      frame.append(one); return one;
    };
    const percent = thousandths => `${(thousandths / 10).toFixed(2)}%`;
    const drawAttention = name => {  // the mean of the seeds, and a band from the lowest to the highest
      const { axis, across, down } = view, runs = view.runs.filter(run => run.attention === name);
      const shortest = runs.reduce((a, b) => a.ends[axis] <= b.ends[axis] ? a : b);
      const points = shortest.loss.map((_, i) => place(shortest, i, axis)).map(x => [x, runs.map(run => valueAt(run, x)).filter(loss => loss !== null)]);
      const along = of => points.map(([x, losses]) => `${across(x).toFixed(1)},${down(of(losses)).toFixed(1)}`);
      if (runs.length > 1) path("band", `M${[...along(losses => Math.max(...losses)), ...along(losses => Math.min(...losses)).toReversed()].join("L")}z`, name);
      path("line", `M${along(mean).join("L")}`, name);
      const spikes = runs.flatMap(run => run.spikes.map(([i]) => across(place(run, i, axis))));
      if (spikes.length) path("tick", spikes.map(x => `M${x.toFixed(1)} 0V35`).join(""), name);
    };
    const drawMarks = () => {
      const { axis, low, high, bottom, top, runs, names, gap, across, down } = view;
      const y = ticks(bottom, top).map(([loss, text]) => [down(loss), text]).filter(([at]) => at > 30 && at < 985);
      const x = logTicks(low, high).map(one => [across(Math.log(one)), tick(one, axis)]);
      path("grid", y.map(([at]) => `M0 ${at}H1000`).join("") + x.map(([at]) => `M${at} 0V1000`).join(""));
      mark("y-label", "nats per token"); mark("x-label", `${chart.axes[axis]}, logarithmic`);
      for (const [at, text] of x) mark("x", text, { left: percent(at) });
      for (const [at, text] of y) mark("y", text, { top: percent(at) });
      const last = names.map(name => [name, mean(runs.filter(run => run.attention === name).map(run => run.loss.at(-1) / nat))]);
      const labels = last.map(([name, loss]) => ({ name, loss, at: Math.min(Math.max(down(loss), 0), 985) })).sort((a, b) => a.at - b.at);
      labels.forEach((one, i) => { if (i) one.at = Math.max(one.at, labels[i - 1].at + letters); });
      const over = Math.max(labels.at(-1).at - 985, 0);
      for (const { name, loss, at } of labels) {
        const from = Math.min(Math.max(down(loss), 0), 1000), rise = frame.clientHeight * (at - over - from) / 1000;  // a stroke from the line to its label, pixels
        mark("lead", "", { top: percent(from), width: `${Math.hypot(14, rise)}px`, transform: `rotate(${Math.atan2(rise, 14)}rad)` }, name);
        const label = mark("last", loss.toFixed(3), { top: percent(at - over) }, name), called = document.createElement("i");
        called.append(`${name} `); label.prepend(called);
      }
      shown.setAttribute("aria-label", `Training loss over ${chart.names[axis]}, ${view.cell.title}: ${last.map(([name, loss]) => `${name} ends at ${loss.toFixed(3)}`).join(", ")}`);
      const spikes = runs.flatMap(run => run.spikes.filter(([i, height]) => height > nat * top && nat * top > run.loss[i]).map(([i, height]) => ({ name: run.attention, height: height / nat, at: across(place(run, i, axis)) })));
      const kept = [];  // the highest within a distance
      for (const one of spikes.sort((a, b) => b.height - a.height)) if (one.at >= 0 && kept.every(other => Math.abs(one.at - other.at) > letters)) kept.push(one);
      for (const { name, height, at } of kept) mark("spike", height.toFixed(1), { left: percent(at) }, name);
      const pair = [chosen("against"), chart.baseline];
      if (!gap?.text || !pair.every(name => names.includes(name))) return;
      const ends = pair.map(name => Math.max(...runs.filter(run => run.attention === name).map(run => run.ends[axis])));
      const end = across(gap.spent ?? Math.min(...ends));
      path("end", `M${end} 0V1000`);
      mark(end < 350 ? "gap left" : "gap", `gap ${gap.text}`, { left: percent(end) });
    };
    const hidden = () => every("input[name=show]:not(:checked)", hero).map(one => one.value);
    const draw = () => {
      view = look();
      svg.replaceChildren(); frame.replaceChildren(svg);
      shown.hidden = !view;
      if (!view) return;
      for (const key of ["axis", "range"]) shown.dataset[key] = view[key];
      shown.dataset.cell = view.number;
      drawMarks();
      view.names.forEach(drawAttention);
      for (const name of hidden()) every(`[data-attention="${CSS.escape(name)}"]`, frame).forEach(one => { one.style.display = "none"; });
    };
    const paint = () => cells.forEach(cell => {  // the map
      const gap = chart.gaps[chosen("axis")]?.[chosen("against")]?.[cell.value], one = cell.nextElementSibling;
      if (!chosen("against")) return;
      one.className = !gap ? "value" : !gap.text ? "value none" : gap.leader ? "value" : "value open";
      if (gap?.leader) one.dataset.leader = gap.leader; else delete one.dataset.leader;
      one.title = gap?.said ?? ""; one.style.setProperty("--share", gap?.leader ? gap.share : 0);
      const said = document.createElement("span"); said.className = "unseen"; said.append(` ${one.title}`);
      one.replaceChildren(gap ? gap.text || "no pair" : "", said);
    });
    const valueAt = (run, x) => {
      const i = run.loss.findIndex((_, i) => place(run, i, view.axis) >= x - 1e-9);
      if (i < 0 || x < place(run, 0, view.axis) - 1e-3) return null;
      if (i === 0) return run.loss[0] / nat;
      const [a, c] = [place(run, i - 1, view.axis), place(run, i, view.axis)], [b, d] = run.loss.slice(i - 1, i + 1);
      return (b + (d - b) * (x - a) / (c - a)) / nat;
    };
    const read = () => {
      every(".hair, .dot", frame).forEach(one => one.remove());
      if (!view) return reading.replaceChildren();
      const { low, high, bottom, top, axis, runs } = view, x = low + at * (high - low), gone = hidden();
      const parts = [["", amount(Math.exp(x), axis)]];
      mark("hair", "", { left: `${100 * at}%` });
      for (const name of view.names.filter(one => !gone.includes(one))) {
        const known = runs.filter(run => run.attention === name).map(run => valueAt(run, x)).filter(loss => loss !== null);
        if (!known.length) { parts.push([name, "no value here"]); continue; }
        const loss = mean(known);
        parts.push([name, loss.toFixed(3) + (known.length > 1 ? ` (mean of ${known.length})` : "")]);
        if (loss <= top && loss >= bottom) mark("dot", "", { left: `${100 * at}%`, top: percent(view.down(loss)) }, name);
      }
      reading.replaceChildren(...parts.map(([name, text]) => {
        const one = document.createElement("span"), bold = document.createElement("b");
        bold.textContent = name || text; if (name) bold.dataset.attention = name;
        one.append(bold, name ? ` ${text}` : ""); return one;
      }));
      slide.value = 1000 * at;
      slide.setAttribute("aria-valuetext", parts.map(part => part.join(" ").trim()).join(", "));
    };
    const follow = () => {
      const cell = chart.cells[chosen("cell")];
      if (!cell) return;
      hero.querySelector(".cell-name").textContent = cell.title;
      const axis = hero.querySelector(".axis-name");
      if (axis) axis.textContent = chart.names[chosen("axis")];
      sliders.forEach(one => {
        const values = JSON.parse(one.dataset.values), i = values.indexOf(cell[one.dataset.of]);
        one.value = i; one.setAttribute("aria-valuetext", values[i]);
        one.nextElementSibling.textContent = values[i];
      });
      try { history.replaceState(null, "", `#${new URLSearchParams(["axis", "range", "cell"].map(name => [name, chosen(name)]))}`); } catch { /* a page in a mail has no address */ }
      paint(); draw(); read();
    };
    sliders.forEach(one => one.addEventListener("input", () => {
      const values = JSON.parse(one.dataset.values), now = chart.cells[chosen("cell")], key = one.dataset.of, other = key === "size" ? "context" : "size";
      const wanted = cells.filter(cell => chart.cells[cell.value][key] === values[+one.value]);
      const next = wanted.find(cell => chart.cells[cell.value][other] === now[other]) ?? wanted.at(-1);
      if (next) next.checked = true;
      follow();
    }));
    hero.addEventListener("change", event => { if (event.target.matches("[type=radio], [type=checkbox]")) follow(); });
    slide.addEventListener("input", () => { at = slide.value / 1000; read(); });
    const point = event => {
      if (!event.target.closest(".frame")) return;
      const box = frame.getBoundingClientRect();
      at = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)); read();
    };
    hero.addEventListener("pointermove", point); hero.addEventListener("pointerdown", point);
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of asked) {
      const one = every("input[type=radio]", hero).find(input => input.name === name && input.value === value);
      if (one) one.checked = true;
    }
    follow();
  }
  every("table.data thead").forEach(head => {
    every("th", head).forEach(cell => {
      if (cell.querySelector("button") || !cell.textContent.trim()) return;
      const button = document.createElement("button"); button.type = "button";
      button.append(...cell.childNodes); cell.append(button);
    });
    head.addEventListener("click", event => {
      const cell = event.target.closest("button")?.closest("th"); if (!cell) return;
      const body = head.parentElement.tBodies[0], i = cell.cellIndex;
      const key = row => { const one = row.cells[i], text = one.dataset.sort ?? one.textContent.trim(), n = parseFloat(text.replace(/[,★≈] ?/g, "").replace("−", "-")); return [text === "", n, text]; };
      const side = cell.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      every("th", head).forEach(one => one.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", side > 0 ? "ascending" : "descending");
      body.append(...[...body.rows].map(row => [key(row), row]).sort(([a], [b]) => a[0] - b[0] || side * (isNaN(a[1]) || isNaN(b[1]) ? a[2].localeCompare(b[2]) : a[1] - b[1])).map(pair => pair[1]));
    });
  });
  document.addEventListener("click", async event => {
    const button = event.target.closest("[data-copy]"); if (!button) return;
    const text = document.getElementById(button.dataset.copy).textContent;
    let done = true;
    try { await navigator.clipboard.writeText(text); } catch {  // a file has no clipboard in some browsers
      const area = document.createElement("textarea"); area.value = text; document.body.append(area); area.select();
      done = document.execCommand("copy"); area.remove(); button.focus();
    }
    const before = button.textContent; button.textContent = done ? "Copied" : "Could not copy";
    setTimeout(() => { button.textContent = before; }, 1500);
  });
  const closed = () => every("details.section:not([open]), details.rows:not([open])");
  let opened = [];
  addEventListener("beforeprint", () => { opened = closed(); opened.forEach(one => { one.open = true; }); });
  addEventListener("afterprint", () => opened.forEach(one => { one.open = false; }));
  addEventListener("hashchange", () => { const target = document.getElementById(location.hash.slice(1)); if (target) target.closest("details")?.setAttribute("open", ""); });
})();
