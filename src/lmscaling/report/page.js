"use strict";
(() => {
  const root = document.documentElement, every = (query, of = document) => [...of.querySelectorAll(query)];
  root.classList.add("scripted");
  const hero = document.querySelector(".hero");
  if (hero) {
    const slide = hero.querySelector(".read"), reading = hero.querySelector(".reading");
    const cells = every("input[name=cell]", hero);
    let at = 0.85;
    const view = () => every(".view", hero).find(one => one.offsetParent);
    const points = {};  // of each path: [x, y], ascending in x
    const pointsOf = name => points[name] ??= document.getElementById(name).getAttribute("d").slice(1).split("L").map(pair => pair.split(" ").map(Number));
    const valueAt = (name, x) => {
      const p = pointsOf(name), i = p.findIndex(one => one[0] >= x);
      if (i < 0 || x < p[0][0] - 1) return null;
      if (i === 0) return p[0][1] / 1000;
      const [[a, b], [c, d]] = [p[i - 1], p[i]];
      return (b + (d - b) * (x - a) / (c - a)) / 1000;
    };
    const amount = (x, axis) => {
      const short = n => n >= 1e12 ? (n / 1e12).toPrecision(3) + "T" : n >= 1e9 ? (n / 1e9).toPrecision(3) + "B" : n >= 1e6 ? (n / 1e6).toPrecision(3) + "M" : n >= 1e3 ? (n / 1e3).toPrecision(3) + "k" : n.toPrecision(3);
      if (axis === "hours") return x >= 0.1 ? `${x.toPrecision(3)} hours` : `${(3600 * x).toPrecision(3)} seconds`;
      return axis === "flops" ? `${x.toExponential(2)} FLOPs` : `${short(x)} ${axis}`;
    };
    const read = () => {
      const shown = view();
      every(".hair, .dot", hero).forEach(one => one.remove());
      if (!shown) return reading.replaceChildren();
      const frame = shown.querySelector(".frame"), [low, high, bottom, top] = ["low", "high", "bottom", "top"].map(key => +shown.dataset[key]);
      const x = low + at * (high - low), losses = new Map();
      every("use.line", shown).forEach(use => {
        if (getComputedStyle(use).display === "none") return;
        const loss = valueAt(use.getAttribute("href").slice(1), 1000 * (x - use.dataset.end));
        const of = losses.get(use.dataset.attention) ?? losses.set(use.dataset.attention, []).get(use.dataset.attention);
        if (loss !== null) of.push(loss);
      });
      const parts = [["", amount(Math.exp(x), shown.dataset.axis)]];
      const add = (kind, style) => { const one = document.createElement("span"); one.className = kind; Object.assign(one.style, style); frame.append(one); return one; };
      add("hair", { left: `${100 * at}%` });
      for (const [name, known] of losses) {
        if (!known.length) { parts.push([name, "no value here"]); continue; }
        const mean = known.reduce((a, b) => a + b) / known.length;
        parts.push([name, mean.toFixed(3) + (known.length > 1 ? ` (mean of ${known.length})` : "")]);
        if (mean <= top && mean >= bottom) add("dot", { left: `${100 * at}%`, top: `${100 * (top - mean) / (top - bottom)}%` }).dataset.attention = name;
      }
      reading.replaceChildren(...parts.map(([name, text]) => {
        const one = document.createElement("span"), bold = document.createElement("b");
        bold.textContent = name || text; if (name) bold.dataset.attention = name;
        one.append(bold, name ? ` ${text}` : ""); return one;
      }));
      slide.value = 1000 * at;
      slide.setAttribute("aria-valuetext", parts.map(part => part.join(" ").trim()).join(", "));
    };
    const sliders = every("input[data-of]", hero);
    const follow = () => {
      const chosen = cells.find(one => one.checked);
      if (!chosen) return;
      hero.querySelector(".cell-name").textContent = chosen.dataset.title;
      hero.querySelector(".axis-name").textContent = hero.querySelector("input[name=axis]:checked").dataset.name;
      sliders.forEach(one => {
        const values = JSON.parse(one.dataset.values), i = values.indexOf(chosen.dataset[one.dataset.of]);
        one.value = i; one.setAttribute("aria-valuetext", values[i]);
        one.nextElementSibling.textContent = values[i];
      });
      const [axis, range] = ["axis", "range"].map(name => hero.querySelector(`input[name=${name}]:checked`).value);
      try { history.replaceState(null, "", `#axis=${axis}&range=${range}&cell=${chosen.value}`); } catch { /* a page in a mail has no address */ }
      read();
    };
    sliders.forEach(one => one.addEventListener("input", () => {
      const values = JSON.parse(one.dataset.values), chosen = cells.find(cell => cell.checked), key = one.dataset.of, other = key === "size" ? "context" : "size";
      const wanted = cells.filter(cell => cell.dataset[key] === values[+one.value]);
      const next = wanted.find(cell => cell.dataset[other] === chosen.dataset[other]) ?? wanted.at(-1);
      if (next) next.checked = true;
      follow();
    }));
    hero.addEventListener("change", event => { if (event.target.matches("[type=radio], [type=checkbox]")) follow(); });
    slide.addEventListener("input", () => { at = slide.value / 1000; read(); });
    const point = event => {
      const frame = event.target.closest(".frame"); if (!frame) return;
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
  addEventListener("hashchange", () => { const target = document.getElementById(location.hash.slice(1)); if (target) target.closest("details")?.setAttribute("open", ""); });
})();
