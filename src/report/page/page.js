'use strict';
// The page of `winnow report`. Everything it draws stands in the page: figures as JSON in #winnow-data, matrices as
// compressed tiles in script elements of their own, opened when they are looked at. Nothing is measured here.
(() => {
  const D = JSON.parse(document.getElementById('winnow-data').textContent);
  const root = document.documentElement;
  const W = (window.winnow = {data: D, charts: {}, errors: []});

  /* ---- small tools ---- */
  const make = (tag, props, ...children) => {
    const e = document.createElement(tag);
    for (const k in props || {}) {
      if (k === 'class') e.className = props[k];
      else if (k.startsWith('on')) e.addEventListener(k.slice(2), props[k]);
      else if (k in e && typeof props[k] !== 'string') e[k] = props[k];
      else e.setAttribute(k, props[k]);
    }
    e.append(...children);
    return e;
  };
  const css = name => getComputedStyle(root).getPropertyValue(name).trim();
  const short = v => {
    if (v === null || v === undefined || !isFinite(v)) return '';
    const a = Math.abs(v);
    return a !== 0 && (a < 1e-3 || a >= 1e7) ? v.toExponential(3) : String(+v.toPrecision(6));
  };
  const big = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 4});
  const tick = v => (Math.abs(v) >= 10000 ? big.format(v) : short(v));
  const shown = s => s.replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/^\s+|\s+$/g, m => '␣'.repeat(m.length)) || '∅';
  const save = (name, text, type) => {
    const url = URL.createObjectURL(new Blob([text], {type}));
    make('a', {href: url, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  const dark = () => root.dataset.theme === 'dark' ||
    (root.dataset.theme !== 'light' && matchMedia('(prefers-color-scheme:dark)').matches);
  const redraw = new Set(); // what depends on the colours
  const recolour = () => redraw.forEach(f => f());
  matchMedia('(prefers-color-scheme:dark)').addEventListener('change', recolour);
  const themeButton = document.getElementById('theme');
  if (themeButton) {
    const names = ['as the system', 'light', 'dark'];
    themeButton.addEventListener('click', () => {
      const next = {undefined: 'light', light: 'dark', dark: undefined}[root.dataset.theme];
      if (next) root.dataset.theme = next;
      else delete root.dataset.theme;
      themeButton.textContent = 'Colours: ' + names[next === 'light' ? 1 : next === 'dark' ? 2 : 0];
      recolour();
    });
  }
  let before;
  addEventListener('beforeprint', () => { before = root.dataset.theme; root.dataset.theme = 'light'; recolour(); });
  addEventListener('afterprint', () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; recolour(); });

  /* ---- tiles: base64 of zlib, in <script id="tile-N"> ---- */
  const open = new Map();
  const tile = n => {
    if (!open.has(n)) {
      if (open.size > 24) open.delete(open.keys().next().value);
      const raw = Uint8Array.from(atob(document.getElementById('tile-' + n).textContent), c => c.charCodeAt(0));
      const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('deflate'));
      open.set(n, new Response(stream).arrayBuffer().then(b => new Uint8Array(b)));
    }
    return open.get(n);
  };
  W.tile = tile;

  /* ---- charts (Chart.js) ---- */
  const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
  const marks = ['circle', 'rect', 'triangle', 'rectRot'];
  const smooth = (y, a) => {
    if (!a) return y;
    let s = null;
    return y.map(v => (v === null ? null : (s = s === null ? v : a * s + (1 - a) * v)));
  };
  function chart(place, f) {
    const view = {axis: 0, xlog: f.x[0].log, ylog: f.y.log, smooth: 0};
    const frame = place.closest('section.figure'), small = () => !!frame && frame.classList.contains('small');
    const canvas = make('canvas', {role: 'img', tabindex: '0', 'aria-label': f.title + '. Values in the table below; arrow keys walk along them.'});
    const say = make('p', {class: 'say', 'aria-live': 'polite'});
    const colour = i => css('--c' + (i % 8));
    const sets = () => {
      const out = f.series.map((s, i) => {
        const from = (view.smooth && s.mean) || s; // of a thinned line its extremes, or, to be smoothed, its means
        const y = f.smooth && from.y.length > 100 ? smooth(from.y, view.smooth) : from.y, x = from.x[view.axis], c = colour(s.colour ?? i);
        const data = [];
        for (let k = 0; k < y.length; k++)
          if (y[k] !== null && x[k] !== null && !(view.xlog && x[k] <= 0) && !(view.ylog && y[k] <= 0)) data.push({x: x[k], y: y[k], k, z: s.z ? s.z[k] : null});
        data.sort((a, b) => a.x - b.x); // what the pointer is over is searched for by halves
        const few = data.length <= (small() ? 12 : 60), fine = small() ? 0.6 : 1, crowd = s.points && data.length > 300;
        return {label: s.name, data, borderColor: c, backgroundColor: crowd ? c + '59' : c, borderWidth: f.bars ? 0 : s.points ? 0 : data.length > 300 ? 1 : (s.dash ? 2.5 : 2) * fine, borderDash: dashes[s.dash || 0],
          pointStyle: marks[s.dash || 0], pointRadius: f.cell ? 0 : crowd ? 2 : s.points ? 3.5 : few ? (s.dash && f.series.length > 1 ? 4 : 2.5) * fine : 0, pointHoverRadius: 5, pointHitRadius: 6,
          showLine: !s.points && !f.cell, tension: 0, hidden: !!s.hidden, order: s.points ? 9 : -(s.dash || 0)};
      });
      for (const l of f.levels || []) {
        const all = f.series.flatMap(s => s.x[view.axis]).filter(v => v !== null && (!view.xlog || v > 0));
        const a = all.reduce((m, v) => Math.min(m, v), Infinity), b = all.reduce((m, v) => Math.max(m, v), -Infinity);
        out.push({label: l.name, data: [{x: a, y: l.y}, {x: b, y: l.y}], borderColor: css('--soft'), backgroundColor: css('--soft'),
          borderWidth: 1.2, borderDash: [5, 4], pointRadius: 0, pointHitRadius: 6});
      }
      return out;
    };
    const bounds = values => {
      let a = Infinity, b = -Infinity;
      for (const v of values) if (v !== null && v > 0) (a = Math.min(a, v)), (b = Math.max(b, v));
      return a < b ? {min: a / (b / a) ** 0.02, max: b * (b / a) ** 0.02} : {};
    };
    // Only where something lies above: else the axis ends where the data does.
    const beyond = f.yMax && f.series.some(s => s.y.some(v => v !== null && v > f.yMax)), cut = beyond ? +f.yMax.toPrecision(2) : 0;
    // A logarithmic axis has round numbers alone, the more of them the fewer decades there are; its own ends are none,
    // unless there is nothing else.
    const lead = v => +(v / 10 ** Math.floor(Math.log10(v))).toFixed(6);
    const round = axis => {
      const n = axis.ticks.length, leads = n < 12 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : n < 30 ? [1, 2, 5] : [1];
      const some = axis.ticks.filter(t => leads.includes(lead(t.value)));
      if (some.length > 1) axis.ticks = some;
    };
    const scale = (label, log) => ({type: log ? 'logarithmic' : 'linear',
      title: {display: true, text: label + (log ? ' (logarithmic)' : ''), color: css('--soft'), ...(small() ? {font: {size: 10}, padding: 0} : {})},
      ticks: {color: css('--soft'), maxRotation: 0, autoSkip: true, autoSkipPadding: 14, callback: v => tick(log ? +v.toPrecision(3) : v),
        ...(small() ? {font: {size: 9.5}, padding: 2, maxTicksLimit: 5} : {})},
      ...(log ? {afterBuildTicks: round} : {}), grid: {color: css('--line')}});
    // Half a cell to both sides; the height of bands.
    const ends = (values, half, log) => log ? {min: Math.min(...values) / half, max: Math.max(...values) * half} : {min: Math.min(...values) - half, max: Math.max(...values) + half};
    const sides = axis => f.cell ? ends(f.series.flatMap(s => axis ? s.y : s.x[0]), axis ? f.cell[1] / 2 : view.xlog ? Math.sqrt(f.cell[0]) : f.cell[0] / 2, !axis && view.xlog) : {};
    const room = () => {
      const edges = f.cell ? [] : f.series.flatMap(s => (s.z || []).flatMap((z, k) => [s.y[k] - z, s.y[k] + z]));
      return edges.length ? {suggestedMin: Math.min(...edges), suggestedMax: Math.max(...edges)} : {};
    };
    // Beneath the lines: the band around each, or cells, as dark as their z.
    const under = {id: 'under', beforeDatasetsDraw: c => {
      const g = c.ctx, {x, y} = c.scales, {left, top, width, height} = c.chartArea, at = (s, v) => s.getPixelForValue(s.type === 'logarithmic' ? Math.max(s.min, v) : v);
      g.save();
      g.beginPath(), g.rect(left, top, width, height), g.clip();
      g.textAlign = 'center', g.textBaseline = 'middle', g.font = (small() ? 9.5 : 12) + 'px system-ui, sans-serif';
      c.data.datasets.forEach((d, i) => {
        const points = c.isDatasetVisible(i) ? d.data.filter(p => p.z !== null && p.z !== undefined) : [];
        g.fillStyle = d.borderColor;
        if (!f.cell) {
          g.globalAlpha = 0.15;
          g.beginPath();
          for (const p of points) g.lineTo(at(x, p.x), at(y, p.y + p.z));
          for (const p of points.reverse()) g.lineTo(at(x, p.x), at(y, p.y - p.z));
          g.fill();
          return;
        }
        for (const p of points) {
          const {min, max} = ends([p.x], view.xlog ? Math.sqrt(f.cell[0]) : f.cell[0] / 2, view.xlog), a = at(x, min), b = at(y, p.y - f.cell[1] / 2);
          g.globalAlpha = 0.7 * Math.max(0, Math.min(1, p.z / f.cell[2]));
          g.fillStyle = d.borderColor;
          g.fillRect(a, b, at(x, max) - a, at(y, p.y + f.cell[1] / 2) - b);
          g.globalAlpha = 1;
          g.fillStyle = css('--ink');
          g.fillText(short(p.z), at(x, p.x), at(y, p.y));
        }
      });
      g.restore();
    }};
    // What a point of a layer or a head is on the other axis.
    const beside = (series, p) => {
      const other = f.x.length === 2 && f.x[1].label === 'head' ? 1 - view.axis : -1, v = other >= 0 && series && series.x[other][p.k];
      return v === false || v === null || v === undefined ? '' : ` (${f.x[other].label} ${v})`;
    };
    const whole = (s, range) => {
      if (['layer', 'head'].includes(f.x[view.axis].label)) (s.ticks.precision = 0), (s.offset = true);
      return Object.assign(s, range);
    };
    // The legend: buttons below the chart, as many as there are, each showing or hiding its line.
    const legend = make('ul', {class: 'legend', 'aria-label': 'lines of ' + f.title});
    const sign = d => {
      const canvas = make('canvas', {width: 26, height: 10, 'aria-hidden': 'true'}), g = canvas.getContext('2d');
      g.strokeStyle = g.fillStyle = d.borderColor;
      g.lineWidth = 2;
      g.setLineDash(d.borderDash || []);
      if (f.bars) g.fillRect(7, 0, 12, 10);
      else if (d.showLine === false) g.arc(13, 5, 3.5, 0, 7), g.fill();
      else g.moveTo(0, 5), g.lineTo(26, 5), g.stroke();
      return canvas;
    };
    const fillLegend = () => legend.replaceChildren(...(f.cell ? [] : c.data.datasets).map((d, i) =>
      make('li', {}, make('button', {type: 'button', 'aria-pressed': String(c.isDatasetVisible(i)), onclick: e => {
        c.setDatasetVisibility(i, !c.isDatasetVisible(i));
        c.update('none');
        e.currentTarget.setAttribute('aria-pressed', String(c.isDatasetVisible(i)));
      }}, sign(d), d.label))));
    const options = () => ({animation: false, responsive: true, maintainAspectRatio: false, parsing: false, normalized: true,
      interaction: {mode: f.bars ? 'index' : 'nearest', axis: 'x', intersect: false},
      scales: {x: whole(scale(f.x[view.axis].label, view.xlog), f.cell ? sides(0) : view.xlog ? bounds(f.series.flatMap(s => s.x[view.axis])) : {}),
        y: {...scale(f.y.label, view.ylog), ...(view.ylog ? bounds([...f.series.flatMap(s => s.y), ...(f.levels || []).map(l => l.y)]) : {}), ...(cut ? {max: cut} : {}), ...(f.bars && !view.ylog ? {beginAtZero: true} : {}), ...(f.cell ? {...sides(1), reverse: true} : room())}},
      plugins: {legend: {display: false},
        tooltip: {callbacks: {title: items => f.x[view.axis].label + ' ' + short(items[0].parsed.x), label: c => c.dataset.label + ': ' + value(c.raw, c.parsed.y) + beside(f.series[c.datasetIndex], c.raw)}}}});
    const value = (p, y) => f.cell ? `${f.y.label} ${short(y)}, ${f.z} ${short(p.z)}` : short(y) + (p.z !== null && p.z !== undefined ? ' ± ' + short(p.z) : '');
    const box = make('div', {class: 'chart'}, canvas);
    place.append(box); // it takes its size from where it stands
    const c = new Chart(canvas, {type: f.bars ? 'bar' : 'line', data: {datasets: sets()}, options: options(), plugins: [under]});
    W.charts[f.id] = c;
    const again = () => {
      const hidden = c.data.datasets.map((d, i) => !c.isDatasetVisible(i));
      c.data.datasets = sets();
      c.options = options();
      c.update('none');
      hidden.forEach((h, i) => { if (i < c.data.datasets.length) c.setDatasetVisibility(i, !h); });
      c.update('none');
      fillLegend();
    };
    fillLegend();
    redraw.add(again);
    f.again = again;
    const controls = make('div', {class: 'controls'});
    if (f.x.length > 1)
      controls.append(make('label', {}, 'over', make('select', {class: 'axis', onchange: e => {
        view.axis = +e.target.value;
        view.xlog = f.x[view.axis].log;
        const box = controls.querySelector('.xlog');
        if (box) box.checked = view.xlog;
        again();
      }}, ...f.x.map((x, i) => make('option', {value: String(i)}, x.label)))));
    if (!f.bars && !f.cell)
      controls.append(make('label', {}, make('input', {type: 'checkbox', class: 'xlog', checked: view.xlog, onchange: e => { view.xlog = e.target.checked; again(); }}), 'log x'));
    if (!f.cell) controls.append(make('label', {}, make('input', {type: 'checkbox', class: 'ylog', checked: view.ylog, onchange: e => { view.ylog = e.target.checked; again(); }}), 'log y'));
    if (f.smooth)
      controls.append(make('label', {}, 'smoothing', make('input', {type: 'range', min: '0', max: '0.99', step: '0.01', value: '0', class: 'smooth',
        oninput: e => { view.smooth = +e.target.value; again(); }})));
    controls.append(make('button', {type: 'button', class: 'csv', onclick: () => save(f.id + '.csv', csv(f), 'text/csv')}, 'CSV'));
    if (thinned(f)) controls.append(make('span', {class: 'say thinned'}, thinned(f)));
    let at = -1;
    canvas.addEventListener('keydown', e => {
      const first = c.data.datasets.findIndex((d, i) => c.isDatasetVisible(i));
      if (first < 0 || !['ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(e.key)) return;
      e.preventDefault();
      const n = c.data.datasets[first].data.length;
      at = e.key === 'Home' ? 0 : e.key === 'End' ? n - 1 : Math.min(n - 1, Math.max(0, at + (e.key === 'ArrowRight' ? 1 : -1)));
      const active = c.data.datasets.map((d, i) => ({datasetIndex: i, index: at})).filter(a => c.isDatasetVisible(a.datasetIndex) && at < c.data.datasets[a.datasetIndex].data.length);
      c.setActiveElements(active);
      c.tooltip.setActiveElements(active, {x: 0, y: 0});
      c.update('none');
      say.textContent = active.map(a => {
        const d = c.data.datasets[a.datasetIndex], p = d.data[at];
        return d.label + ' at ' + short(p.x) + ': ' + value(p, p.y) + beside(f.series[a.datasetIndex], p);
      }).join('; ');
    });
    box.before(controls);
    box.after(legend, say, values(f));
    if (small()) {
      const more = make('button', {type: 'button', class: 'enlarge', 'aria-pressed': 'false', 'aria-label': 'enlarge ' + f.title, onclick: () => {
        more.setAttribute('aria-pressed', String(!frame.classList.toggle('small')));
        more.textContent = small() ? 'enlarge' : 'smaller';
        again();
        c.resize();
      }}, 'enlarge');
      frame.querySelector('h3').append(more);
    }
  }
  // Small figures that follow each other stand in one row, above which is the legend of the first.
  const rows = () => {
    for (const first of document.querySelectorAll('section.figure.small')) {
      if (first.parentNode.classList.contains('row')) continue;
      const row = make('div', {class: 'row'}), block = make('div', {id: 'row-' + first.id}, row);
      first.before(block);
      for (let next = first; next?.matches('section.figure.small'); next = block.nextElementSibling) row.append(next);
      row.style.setProperty('--n', row.children.length > 7 ? 5 : row.children.length);
    }
  };
  // A line of that legend hides and shows the lines of its name in every chart of the row.
  const rowLegends = () => {
    for (const row of document.querySelectorAll('.row')) {
      const ids = [...row.children].map(e => e.id), first = row.querySelector('.legend');
      if (!first) continue;
      const legend = make('ul', {class: 'legend all', 'aria-label': 'lines of all curves'});
      const fill = () => legend.replaceChildren(...[...first.children].map(li => {
        const copy = li.cloneNode(true), button = copy.querySelector('button'), canvas = copy.querySelector('canvas'), name = button.textContent;
        canvas.getContext('2d').drawImage(li.querySelector('canvas'), 0, 0);
        button.addEventListener('click', () => {
          const on = button.getAttribute('aria-pressed') !== 'true';
          button.setAttribute('aria-pressed', String(on));
          for (const id of ids)
            document.getElementById(id).querySelectorAll('.legend button').forEach(b => {
              if (b.textContent === name && b.getAttribute('aria-pressed') !== String(on)) b.click();
            });
        });
        return copy;
      }));
      fill();
      redraw.add(fill);
      row.before(legend);
    }
  };
  const csv = f => 'series,' + f.x.map(x => quote(x.label)).join(',') + ',' + quote(f.y.label) + (f.z ? ',' + quote(f.z) : '') + '\n' +
    f.series.map(s => s.y.map((y, k) => quote(s.name) + ',' + s.x.map(x => x[k] ?? '').join(',') + ',' + (y ?? '') + (f.z ? ',' + (s.z?.[k] ?? '') : '') + '\n').join('')).join('');
  // What is not in the page of long series.
  const thinned = f => {
    const drawn = f.series.reduce((n, s) => n + s.y.length, 0), all = f.series.reduce((n, s) => n + (s.all || s.y.length), 0);
    return drawn < all ? `${drawn.toLocaleString('en')} of ${all.toLocaleString('en')} points` + (f.csv ? `; all in ${f.csv}` : '') : '';
  };
  const quote = s => (/[",\n]/.test(s) ? '"' + s.replace(/"/g, '""') + '"' : s);
  function values(f) {
    const d = make('details', {class: 'values'}, make('summary', {}, 'Values'));
    d.addEventListener('toggle', () => {
      if (!d.open) return;
      d.querySelectorAll('.scroll, .thinned').forEach(e => e.remove());
      if (thinned(f)) d.append(make('p', {class: 'say thinned'}, thinned(f)));
      const head = make('tr', {}, make('th', {scope: 'col'}, 'series'), ...f.x.map(x => make('th', {scope: 'col', class: 'n'}, x.label)), make('th', {scope: 'col', class: 'n'}, f.y.label), ...(f.z ? [make('th', {scope: 'col', class: 'n'}, f.z)] : []));
      const body = make('tbody');
      for (const s of f.series)
        s.y.forEach((y, k) => body.append(make('tr', {}, make('td', {}, s.name), ...s.x.map(x => make('td', {class: 'n'}, short(x[k]))), make('td', {class: 'n'}, short(y)), ...(f.z ? [make('td', {class: 'n'}, short(s.z?.[k]))] : []))));
      d.append(make('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'values of ' + f.title}, make('table', {}, make('thead', {}, head), body)));
    });
    return d;
  }

  /* ---- colours of matrices: 0..255 ---- */
  const palettes = {
    weight: [[[255, 255, 255], [158, 202, 247], [10, 95, 196], [4, 32, 74]], [[13, 17, 23], [20, 66, 120], [88, 166, 255], [225, 240, 255]]],
    masked: [[[255, 255, 255], [254, 215, 170], [220, 80, 20], [90, 20, 5]], [[13, 17, 23], [110, 40, 10], [255, 140, 80], [255, 240, 220]]],
    kept: [[[255, 255, 255], [21, 128, 61]], [[13, 17, 23], [95, 211, 138]]],
  };
  const lut = name => {
    const stops = palettes[name][dark() ? 1 : 0], out = new Uint8Array(256 * 3);
    for (let v = 0; v < 256; v++) {
      const x = (v / 255) * (stops.length - 1), k = Math.min(Math.floor(x), stops.length - 2);
      for (let c = 0; c < 3; c++) out[3 * v + c] = stops[k][c] + (x - k) * (stops[k + 1][c] - stops[k][c]);
    }
    return out;
  };
  // value(i, j) in 0..255; cells above the diagonal stay empty. At most `most` pixels wide: the mean over what a pixel covers.
  const paint = (canvas, rows, cols, value, palette, most = 1024, lower = true) => {
    const step = Math.max(1, Math.ceil(Math.max(cols, lower ? rows : 0) / most)), w = Math.ceil(cols / step), rs = lower ? step : 1, h = Math.ceil(rows / rs);
    canvas.width = w;
    canvas.height = h;
    const g = canvas.getContext('2d'), image = g.createImageData(w, h), table = lut(palette);
    for (let r = 0; r < h; r++)
      for (let c = 0; c < w; c++) {
        let sum = 0, n = 0;
        for (let i = r * rs; i < Math.min(rows, (r + 1) * rs); i++)
          for (let j = c * step; j < Math.min(cols, (c + 1) * step) && (!lower || j <= i); j++) (sum += value(i, j)), n++;
        if (!n) continue;
        const v = Math.min(255, Math.round(sum / n)), o = 4 * (r * w + c);
        image.data[o] = table[3 * v], image.data[o + 1] = table[3 * v + 1], image.data[o + 2] = table[3 * v + 2], image.data[o + 3] = 255;
      }
    g.putImageData(image, 0, 0);
  };
  const bar = (palette, low, high) => {
    const canvas = make('canvas', {'aria-hidden': 'true'});
    const draw = () => paint(canvas, 1, 256, (i, j) => j, palette, 256, false);
    draw();
    redraw.add(draw);
    return make('div', {class: 'scale'}, low, canvas, high);
  };

  /* ---- texts: what every token sees ---- */
  const texts = D.texts || [];
  const tri = (i, j) => (i * (i + 1)) / 2 + j;
  for (const v of texts) {
    v.T = v.tokens.length;
    // Quantised: weights as sqrt, selections as 1 - exp(-F) and as differences down the columns.
    v.weights = async l => tile(v.w[l]);
    v.masked = async l => {
      if (!v.f) return null;
      const t = await tile(v.f[l]);
      if (!t.whole) {
        for (let i = 1; i < v.T; i++) for (let j = 0; j < i; j++) t[tri(i, j)] += t[tri(i - 1, j)];
        t.whole = true;
      }
      return t;
    };
    v.weight = (t, i, j) => (t[tri(i, j)] / v.levels) ** 2;
    v.share = (t, i, j) => t[tri(i, j)] / v.levels;
    v.full = (t, i, j) => t[tri(i, j)] >= v.levels; // the largest there is: F may be anything above
    v.strength = (t, i, j) => -Math.log(1 - Math.min(t[tri(i, j)], v.levels - 0.5) / v.levels);
    // Where key-value heads evict for themselves: what each has evicted, [groups * T] for every layer.
    v.groups = v.groups || 1;
    v.perHead = null;
    v.ready = async () => {
      if (v.groups > 1 && !v.perHead)
        v.perHead = await Promise.all(v.evictedAtPerHead.map(async n => {
          if (n === null) return null;
          const t = await tile(n), view = new DataView(t.buffer, t.byteOffset, t.byteLength);
          return Array.from({length: t.byteLength / 4}, (_, k) => view.getUint32(4 * k, true));
        }));
    };
    // head: -1 for the layer, which has lost a token once all of its heads have.
    v.head = () => (v.groups > 1 ? Math.min(state.head, v.groups - 1) : -1);
    v.evictedRow = (l, j, head = -1) => (head >= 0 ? (v.perHead[l] ? v.perHead[l][head * v.T + j] : Infinity) : v.evictedAt && v.evictedAt[l] ? v.evictedAt[l][j] : Infinity);
    v.room = (l, head) => Math.min(v.T, !v.budgets ? v.T : Array.isArray(v.budgets[l]) ? v.budgets[l][head] : v.budgets[l]);
    // How many heads of the layer hold token j when row i is read.
    v.holders = (l, i, j) => {
      if (v.groups === 1) return +(v.evictedRow(l, j) > i);
      let n = 0;
      for (let h = 0; h < v.groups; h++) n += v.evictedRow(l, j, h) > i;
      return n;
    };
    const counts = new Map(); // tokens held, row by row
    v.held = (l, i, head = -1) => {
      const key = l * v.groups + head + (head < 0 ? 1e6 : 0);
      if (!counts.has(key)) {
        const n = new Int32Array(v.T + 1);
        for (let j = 0; j < v.T; j++) n[j]++, n[Math.min(v.T, v.evictedRow(l, j, head))]--;
        for (let j = 1; j < v.T; j++) n[j] += n[j - 1];
        counts.set(key, n);
      }
      return counts.get(key)[i];
    };
  }
  const state = (W.state = {layer: 0, head: -1, token: texts.length ? texts[0].T - 1 : 0, playing: false});
  const listeners = [];
  const groups = Math.max(1, ...texts.map(v => v.groups));
  let pending = null;
  // Chooses the key-value head whose cache is shown; nothing where the heads of a layer hold the same tokens.
  const headChoice = () => {
    if (groups === 1) return [];
    const pick = make('select', {class: 'head', onchange: e => W.set({head: +e.target.value})}, make('option', {value: '-1'}, 'all'),
      ...Array.from({length: groups}, (_, h) => make('option', {value: String(h)}, String(h))));
    listeners.push(() => { pick.value = String(state.head); });
    return [make('label', {}, 'key-value head', pick)];
  };
  W.set = change => {
    const layers = Math.max(...texts.map(v => v.layers)), T = Math.max(...texts.map(v => v.T));
    Object.assign(state, change);
    state.layer = Math.min(layers - 1, Math.max(0, state.layer));
    state.token = Math.min(T - 1, Math.max(0, state.token));
    state.head = Math.min(groups - 1, Math.max(-1, state.head));
    pending = Promise.all(listeners.map(f => f()));
    return pending;
  };
  redraw.add(() => listeners.forEach(f => f()));

  function textFigure(place) {
    const T = Math.max(...texts.map(v => v.T)), layers = Math.max(...texts.map(v => v.layers)), selective = texts.some(v => v.f);
    const layer = make('select', {class: 'layer', onchange: e => W.set({layer: +e.target.value})}, ...Array.from({length: layers}, (_, l) => make('option', {value: String(l)}, String(l))));
    const token = make('input', {type: 'range', class: 'token', min: '0', max: String(T - 1), step: '1', 'aria-label': 'token', oninput: e => W.set({token: +e.target.value})});
    const number = make('output', {class: 'number'});
    let timer = null;
    const stop = () => {
      clearInterval(timer);
      timer = null;
      state.playing = false;
      play.textContent = 'Play';
    };
    const speed = make('select', {class: 'speed', 'aria-label': 'tokens a second'}, ...[2, 8, 20].map(s => make('option', {value: String(s)}, s + ' tokens/s')));
    speed.value = '8';
    const play = make('button', {type: 'button', class: 'play', onclick: () => {
      if (timer) return stop();
      if (state.token >= T - 1) state.token = -1;
      state.playing = true;
      play.textContent = 'Pause';
      timer = setInterval(() => {
        if (state.token >= T - 1) return stop();
        W.set({token: state.token + 1});
      }, 1000 / +speed.value);
    }}, 'Play');
    const show = make('select', {class: 'show', onchange: () => W.set({})}, make('option', {value: 'weight'}, 'attention weight'),
      ...(selective ? [make('option', {value: 'masked'}, 'selection')] : []));
    place.append(make('div', {class: 'controls'}, make('label', {}, 'layer', layer), ...headChoice(), make('label', {}, 'token', token, number), play, speed,
      make('label', {}, 'highlight', show)));
    const panes = make('div', {class: 'panes'});
    for (const v of texts) {
      const say = make('p', {class: 'say off', 'aria-live': 'polite'}), says = make('p', {class: 'says'});
      const text = make('div', {class: 'text', tabindex: '0', role: 'listbox', 'aria-label': 'text of ' + v.name + '; arrow keys choose a token, up and down a layer'});
      const spans = v.tokens.map((s, j) => make('span', {class: 't', role: 'option', 'data-i': String(j)}, s || '∅'));
      text.append(...spans);
      text.addEventListener('click', e => {
        const i = e.target.dataset && e.target.dataset.i;
        if (i !== undefined) stop(), W.set({token: +i});
      });
      text.addEventListener('keydown', e => {
        const move = {ArrowLeft: {token: state.token - 1}, ArrowRight: {token: state.token + 1}, Home: {token: 0}, End: {token: v.T - 1},
          PageUp: {token: state.token - 16}, PageDown: {token: state.token + 16}, ArrowUp: {layer: state.layer - 1}, ArrowDown: {layer: state.layer + 1}}[e.key];
        if (!move) return;
        e.preventDefault();
        stop();
        W.set(move);
      });
      const cache = make('ol', {class: 'cache', 'aria-label': 'tokens held by layer' + (v.groups > 1 ? ' and key-value head' : '')});
      const cells = Array.from({length: v.layers}, (_, l) => {
        const n = make('span', {class: 'n'}), li = make('li', {'data-layer': String(l), onclick: () => W.set({layer: l})}, n);
        const widest = Math.max(...Array.from({length: v.groups}, (_, h) => v.room(l, h)));
        const fills = Array.from({length: v.groups}, (_, h) => {
          const fill = make('span'), bar = make('span', {class: 'bar' + (v.groups > 1 ? ' head' : ''), 'data-head': String(h)}, fill);
          if (v.groups > 1) bar.style.width = (100 * v.room(l, h)) / widest + '%'; // as long as the head's budget
          li.append(bar);
          return fill;
        });
        cache.append(li);
        return {fills, n, li};
      });
      const strip = make('canvas', {class: 'strip', role: 'img', 'aria-label': v.groups > 1 ? 'tokens held: rows for each layer\'s key-value heads, a column for each token' : 'tokens held: a row for each layer, a column for each token'});
      const rows = make('tbody');
      const top = make('details', {class: 'top'}, make('summary', {}, 'What this token looks at most'),
        make('table', {}, make('thead', {}, make('tr', {}, ...['place', 'token', 'weight', ...(v.f ? ['F'] : []), 'state'].map((h, k) =>
          make('th', {scope: 'col', class: k === 2 || h === 'F' || k === 0 ? 'n' : ''}, h)))), rows));
      top.open = true;
      listeners.push(async () => {
        const l = Math.min(state.layer, v.layers - 1), i = Math.min(state.token, v.T - 1);
        layer.value = String(state.layer);
        token.value = String(state.token);
        number.textContent = String(state.token);
        const [w, f] = await Promise.all([v.weights(l), v.masked(l), v.ready()]), head = v.head();
        if (l !== Math.min(state.layer, v.layers - 1) || i !== Math.min(state.token, v.T - 1)) return; // overtaken
        let most = 0, masked = 0, some = 0;
        for (let j = 0; j <= i; j++) most = Math.max(most, v.weight(w, i, j));
        const list = [];
        for (let j = 0; j < v.T; j++) {
          const s = spans[j];
          let name = 't', light = 0;
          if (j > i) name += ' later';
          else {
            const share = f ? v.share(f, i, j) : 0, gone = v.evictedRow(l, j, head) <= i, weight = v.weight(w, i, j), holders = v.holders(l, i, j);
            if (!gone && head < 0 && holders < v.groups) name += ' some', some++;
            if (gone) name += ' gone';
            else if (share > 0.5) (name += ' masked'), masked++;
            if (j === i) name += ' at';
            light = show.value === 'masked' ? share : most > 0 ? weight / most : 0;
            if (!gone) list.push([weight, j, f ? v.strength(f, i, j) : 0, share > 0.5, holders, !!f && v.full(f, i, j)]);
          }
          if (s.className !== name) s.className = name;
          s.style.backgroundColor = light > 0.004 ? `rgba(${css('--mark')},${(0.75 * light).toFixed(3)})` : '';
          if (j === i) s.setAttribute('aria-selected', 'true');
          else s.removeAttribute('aria-selected');
        }
        list.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
        rows.replaceChildren(...list.slice(0, 8).map(([x, j, F, away, holders, full]) => make('tr', {}, make('td', {class: 'n'}, String(j)), make('td', {}, make('code', {}, shown(v.tokens[j]))),
          make('td', {class: 'n'}, x.toFixed(4)), ...(v.f ? [make('td', {class: 'n'}, (full ? '≥' : '') + F.toFixed(2))] : []), make('td', {}, [j === i ? 'itself' : away ? 'masked' : '', holders < v.groups ? `held by ${holders} of ${v.groups} heads` : ''].filter(Boolean).join(', ')))));
        const held = v.held(l, i, head), each = k => Array.from({length: v.groups}, (_, h) => v.held(k, i, h));
        say.textContent = `Layer ${l}, token ${i} ${shown(v.tokens[i])}: ${held} of ${i + 1} tokens held` +
          (v.groups === 1 ? '' : head >= 0 ? ` by key-value head ${head}` : ` by any of ${v.groups} key-value heads, ${held - some} by all`) + (v.f ? `, ${masked} of them masked` : '') + (v.evictedAt ? `, ${i + 1 - held} evicted` : '') + '.';
        const quote = j => `“${shown(v.tokens[j])}”`, reads = list.slice(0, 3).filter(x => x[0] > 0).map(([x, j]) => `${j === i ? 'itself' : quote(j)} (${Math.round(100 * x)}%)`);
        says.textContent = `In layer ${l}, the token ${quote(i)} reads most from ${reads.join(', ')}. ` +
          `Of ${i + 1} tokens up to it ${v.evictedAt ? `the budget has left ${held}` : 'the layer holds all'}` +
          (v.f ? `, and selection has taken more than half of the weight of ${masked ? `${masked} (${Math.round(100 * masked / held)}%)` : 'none'}.` : '.');
        cells.forEach((c, k) => {
          const n = v.groups > 1 ? each(k) : [v.held(k, i)], rooms = n.map((_, h) => v.room(k, h));
          const tell = a => (a.length > 1 && a.every(x => x === a[0]) ? `${a.length} × ${a[0]}` : a.length <= 4 ? a.join(' + ') : `${a.length} × ${+(a.reduce((x, y) => x + y, 0) / a.length).toFixed(1)} (mean)`);
          c.n.textContent = `layer ${k}: ${tell(n)} of ${tell(rooms)}`;
          c.fills.forEach((s, h) => {
            s.style.width = (100 * Math.min(1, n[h] / rooms[h])).toFixed(1) + '%';
            if (v.groups > 1) s.parentNode.title = `key-value head ${h}: ${n[h]} of ${rooms[h]}`;
          });
          c.li.classList.toggle('on', k === l);
        });
        strip.style.height = v.layers * (v.groups === 1 ? 9 : v.layers * v.groups <= 160 ? 4 * v.groups + 4 : 9) + 'px';
        if (v.groups === 1) {
          paint(strip, v.layers * 4, v.T, (r, j) => (j > i ? 0 : v.evictedRow(r >> 2, j) > i ? ((r & 3) === 3 ? 60 : 255) : 40), 'kept', 2048, false);
        } else { // rows of a layer: its heads; where those are too many, one as dark as many of them hold the token
          const lines = v.layers * v.groups <= 160 ? v.groups : 1, rows = 2 * lines + 2;
          paint(strip, v.layers * rows, v.T, (r, j) => {
            const k = Math.floor(r / rows), h = (r % rows) >> 1;
            if (j > i || h === lines) return 0;
            return 40 + 215 * (lines > 1 ? +(v.evictedRow(k, j, h) > i) : v.holders(k, i, j) / v.groups);
          }, 'kept', 2048, false);
        }
        const on = spans[i], box = text.getBoundingClientRect(), b = on.getBoundingClientRect();
        if (b.top < box.top || b.bottom > box.bottom) text.scrollTop += b.top - box.top - box.height / 2;
      });
      panes.append(make('div', {class: 'pane', 'data-view': v.name}, make('h4', {}, v.name), says, text,
        make('div', {class: 'key', 'aria-hidden': 'true'}, ...[['at', 'chosen'], ['later', 'not yet read'], ...(v.f ? [['masked', 'masked: F takes more than half']] : []), ...(v.groups > 1 ? [['some', 'held by some heads']] : []), ...(v.evictedAt ? [['gone', v.groups > 1 ? 'evicted by all, or by the chosen head' : 'evicted']] : [])].map(([c, s]) =>
          make('span', {}, make('span', {class: 't ' + c}, 'token'), ' ' + s))), say, top, make('p', {class: 'say'}, (v.groups > 1 ? 'Caches by layer and key-value head' : 'Cache by layer') + (v.budgets ? `, policy ${v.policy}` : ', without budgets')), cache, strip));
    }
    place.append(panes);
  }

  /* ---- matrices, layer by layer ---- */
  function matrixFigure(place, f) {
    // kinds: what can be shown of each source
    const kinds = [];
    if (texts.some(v => v.f)) kinds.push(['masked', 'selection: 1 - exp(-F)']);
    if (texts.length) kinds.push(['weight', 'attention weight, mean over heads']);
    if (texts.some(v => v.evictedAt)) kinds.push(['kept', 'held under the budgets']);
    const means = D.means || [];
    const sources = [...texts.map(v => ({name: v.name + ', this text', layers: v.layers, rows: v.T, cell: 1, async get(kind, l) {
      if (kind === 'kept') {
        await v.ready();
        const head = v.head();
        return !v.evictedAt ? null : head >= 0 ? (i, j) => (v.evictedRow(l, j, head) > i ? 255 : 0) : (i, j) => (255 * v.holders(l, i, j)) / v.groups;
      }
      const t = kind === 'masked' ? await v.masked(l) : await v.weights(l);
      return t && ((i, j) => (t[tri(i, j)] * 255) / v.levels);
    }, read(kind, x) { return kind === 'masked' ? 'share ' + (x / 255).toFixed(3) : kind === 'weight' ? 'weight ' + ((x / 255) ** 2).toFixed(4) : v.groups > 1 && v.head() < 0 ? `held by ${Math.round((x / 255) * v.groups)} of ${v.groups} key-value heads` : x ? 'held' : 'evicted'; }})),
    ...means.map(m => ({name: `${m.name}, mean over ${m.sequences} sequences`, layers: m.layers, rows: m.size, cell: m.cell, async get(kind, l) {
      const n = kind === 'masked' ? m.f && m.f[l] : kind === 'weight' ? m.w[l] : null;
      if (n === null || n === undefined) return null;
      const t = await tile(n);
      return (i, j) => t[tri(i, j)];
    }, read(kind, x) { return kind === 'masked' ? 'share ' + (x / 255).toFixed(3) : 'weight ' + ((x / 255) ** 2).toFixed(5); }}))];
    if (means.some(m => m.f) && !kinds.some(k => k[0] === 'masked')) kinds.unshift(['masked', 'selection: 1 - exp(-F)']);
    const kind = make('select', {class: 'kind', onchange: () => fill()}, ...kinds.map(([k, s]) => make('option', {value: k}, s)));
    if (texts.length && !texts.every(v => v.f)) kind.value = 'weight'; // what all of them have
    const heads = headChoice(); // of what is held: the rest are means
    place.append(make('div', {class: 'controls'}, make('label', {}, 'show', kind), ...heads));
    const columns = sources.map(s => {
      const canvas = make('canvas', {role: 'img', tabindex: '0', class: 'matrix', 'aria-label': 'rows are tokens that look, columns those looked at'}), say = make('p', {class: 'say', 'aria-live': 'polite'}), grid = make('div', {class: 'grid'});
      let value = null, at = [0, 0];
      const tell = (i, j) => {
        if (!value || i < 0 || j < 0 || i >= s.rows || j > i) return;
        at = [i, j];
        const a = i * s.cell, b = j * s.cell;
        say.textContent = (s.cell > 1 ? `rows ${a}..${a + s.cell - 1}, columns ${b}..${b + s.cell - 1}` : `row ${a}, column ${b}`) + ': ' + s.read(kind.value, value(i, j));
      };
      canvas.addEventListener('mousemove', e => {
        const b = canvas.getBoundingClientRect();
        tell(Math.floor(((e.clientY - b.top) / b.height) * s.rows), Math.floor(((e.clientX - b.left) / b.width) * s.rows));
      });
      canvas.addEventListener('click', () => s.cell === 1 && W.set({token: at[0]}));
      canvas.addEventListener('keydown', e => {
        const d = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[e.key];
        if (d) e.preventDefault(), tell(at[0] + d[0], Math.min(at[1] + d[1], at[0] + d[0]));
      });
      const thumbs = Array.from({length: s.layers}, (_, l) => {
        const c = make('canvas', {'aria-hidden': 'true'}), b = make('button', {type: 'button', 'aria-pressed': 'false', 'data-layer': String(l), onclick: () => W.set({layer: l})}, c, 'layer ' + l);
        grid.append(b);
        return {c, b, drawn: ''};
      });
      const large = async () => {
        const l = Math.min(state.layer, s.layers - 1), k = kind.value;
        value = await s.get(k, l);
        if (value) paint(canvas, s.rows, s.rows, value, k);
        else canvas.width = canvas.width; // nothing of this kind
        say.textContent = value ? `Layer ${l}` : 'not there for this model';
        thumbs.forEach((t, n) => t.b.setAttribute('aria-pressed', String(n === l)));
      };
      const seen = new IntersectionObserver(all => all.forEach(async e => {
        const t = thumbs[+e.target.dataset.layer], key = kind.value + dark() + (kind.value === 'kept' ? state.head : '');
        if (!e.isIntersecting || t.drawn === key) return;
        t.drawn = key;
        const v = await s.get(kind.value, +e.target.dataset.layer);
        if (v) paint(t.c, s.rows, s.rows, v, kind.value, 128);
        else t.c.width = t.c.width;
      }), {rootMargin: '1500px'});
      place.append();
      return {s, canvas, say, grid, thumbs, large, look: () => thumbs.forEach(t => { seen.unobserve(t.b); seen.observe(t.b); }), legend: make('div')};
    });
    const panes = make('div', {class: 'panes'}, ...columns.map(c => make('div', {class: 'pane', 'data-source': c.s.name}, make('h4', {}, c.s.name), make('div', {class: 'big'}, c.canvas), c.legend, c.say, c.grid)));
    place.append(panes);
    let layer = -1, head = state.head;
    const fill = () => Promise.all(columns.map(c => {
      heads.forEach(h => (h.hidden = kind.value !== 'kept'));
      c.legend.replaceChildren(bar(kind.value, kind.value === 'kept' ? 'evicted' : '0', kind.value === 'kept' ? (groups > 1 ? 'held by all heads' : 'held') : '1' + (kind.value === 'weight' ? ' (square-root scale)' : '')));
      c.look();
      return c.large();
    }));
    listeners.push(() => {
      if (layer === state.layer && head === state.head) return null;
      if (head !== state.head && kind.value === 'kept') columns.forEach(c => c.look());
      layer = state.layer;
      head = state.head;
      return Promise.all(columns.map(c => c.large()));
    });
    redraw.add(() => { layer = -1; fill(); });
    fill();
  }

  /* ---- the last row of F, all layers ---- */
  async function lastFigure(place) {
    const all = [...texts.filter(v => v.f).map(v => ({name: v.name + ', this text', T: v.T, layers: v.layers, async rows() {
      const out = [];
      for (let l = 0; l < v.layers; l++) {
        const t = await v.masked(l);
        out.push(Array.from({length: v.T}, (_, j) => v.share(t, v.T - 1, j)));
      }
      return out;
    }})), ...(D.means || []).filter(m => m.last !== undefined).map(m => ({name: `${m.name}, mean over ${m.sequences} sequences`, T: m.T, layers: m.layers, async rows() {
      const t = await tile(m.last);
      return Array.from({length: m.layers}, (_, l) => Array.from({length: m.T}, (_, j) => t[l * m.T + j] / 255));
    }}))];
    for (const s of all) {
      const rows = await s.rows();
      const canvas = make('canvas', {class: 'strip last', style: `height:${18 * s.layers}px`, role: 'img', 'aria-label': 'last row of F of ' + s.name});
      const draw = () => paint(canvas, s.layers * 10, s.T, (r, j) => (r % 10 === 9 ? 0 : rows[Math.floor(r / 10)][j] * 255), 'masked', 2048, false);
      draw();
      redraw.add(draw);
      const table = make('table', {class: 'lastrow'}, make('thead', {}, make('tr', {}, ...['layer', 'masked by more than half', 'of', 'share'].map((h, k) => make('th', {scope: 'col', class: k === 0 ? '' : 'n'}, h)))),
        make('tbody', {}, ...rows.map((r, l) => {
          const n = r.filter(x => x > 0.5).length;
          return make('tr', {}, make('td', {}, String(l)), make('td', {class: 'n'}, String(n)), make('td', {class: 'n'}, String(s.T)), make('td', {class: 'n'}, ((100 * n) / s.T).toFixed(1) + '%'));
        })));
      place.append(make('h4', {}, s.name), canvas, bar('masked', '0', '1'), make('details', {}, make('summary', {}, 'By layer'), table));
    }
  }

  /* ---- heads, for short texts ---- */
  function headFigure(place) {
    const views = texts.filter(v => v.heads);
    for (const v of views) {
      const grid = make('div', {class: 'grid heads'}), say = make('p', {class: 'say', 'aria-live': 'polite'});
      const cells = Array.from({length: v.headCount}, (_, h) => {
        const c = make('canvas', {role: 'img', 'aria-label': 'head ' + h});
        const b = make('button', {type: 'button', 'data-head': String(h)}, c, 'head ' + h);
        grid.append(b);
        return {c, b};
      });
      let tiles = null;
      cells.forEach((x, h) => x.c.addEventListener('mousemove', e => {
        const b = x.c.getBoundingClientRect(), i = Math.floor(((e.clientY - b.top) / b.height) * v.T), j = Math.floor(((e.clientX - b.left) / b.width) * v.T);
        if (tiles && j <= i && i < v.T) say.textContent = `head ${h}: ${shown(v.tokens[i])} looks at ${shown(v.tokens[j])} with ${((tiles[h * tri(v.T, 0) + tri(i, j)] / 255) ** 2).toFixed(3)}`;
      }));
      let layer = -1;
      const draw = async () => {
        const l = (layer = Math.min(state.layer, v.layers - 1));
        tiles = await tile(v.heads[l]);
        if (l !== layer) return;
        cells.forEach((x, h) => paint(x.c, v.T, v.T, (i, j) => tiles[h * tri(v.T, 0) + tri(i, j)], 'weight'));
        say.textContent = 'Layer ' + l;
      };
      listeners.push(() => (layer === Math.min(state.layer, v.layers - 1) ? null : draw()));
      redraw.add(draw);
      const pick = make('select', {class: 'layer', onchange: e => W.set({layer: +e.target.value})}, ...Array.from({length: v.layers}, (_, l) => make('option', {value: String(l)}, String(l))));
      listeners.push(() => { pick.value = String(state.layer); });
      place.append(make('h4', {}, v.name), make('div', {class: 'controls'}, make('label', {}, 'layer', pick)), grid, bar('weight', '0', '1 (square-root scale)'), say);
      draw();
    }
  }

  /* ---- tables ---- */
  function tableFigure(place, f) {
    const numeric = f.head.map((_, k) => f.rows.every(r => r[k] === null || typeof r[k] === 'number'));
    place.append(make('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': f.title}, make('table', {}, make('thead', {}, make('tr', {}, ...f.head.map((h, k) => make('th', {scope: 'col', class: numeric[k] ? 'n' : ''}, h)))),
      make('tbody', {}, ...f.rows.map(r => make('tr', {}, ...r.map((x, k) => make('td', {class: numeric[k] ? 'n' : ''}, numeric[k] ? short(x) : String(x ?? '')))))))));
  }

  /* ---- a run that is being trained: the server of `winnow train --serve` ---- */
  function live() {
    const f = D.figures.find(x => x.id === D.live.figure), say = document.getElementById('live');
    let after = '';
    const ask = async () => {
      try {
        const got = await (await fetch('log?after=' + after, {cache: 'no-store'})).json();
        if (got.reset) f.series.forEach(s => { s.x.forEach(x => (x.length = 0)); s.y.length = 0; });
        for (const s of f.series)
          for (const p of got.points) {
            if (p[s.key] === undefined) continue;
            s.y.push(p[s.key]);
            s.x[0].push(p.tokens), s.x[1].push(p.seconds), s.x[2].push(p.step);
          }
        after = got.next;
        if (got.points.length) f.again();
        say.textContent = `step ${got.step} of ${got.steps}` + (got.done ? ', finished' : '');
        if (got.done) return;
      } catch (e) {
        say.textContent = say.textContent.replace(/ · .*/, '') + ' · the run has ended, or its server cannot be reached';
      }
      setTimeout(ask, 1000);
    };
    ask();
  }

  const kinds = {chart, text: textFigure, matrices: matrixFigure, last: lastFigure, heads: headFigure, table: tableFigure};
  addEventListener('error', e => W.errors.push(String(e.message)));
  addEventListener('unhandledrejection', e => W.errors.push(String(e.reason)));
  rows();
  for (const f of D.figures) kinds[f.kind](document.getElementById('plot-' + f.id), f);
  rowLegends();
  W.ready = (texts.length ? W.set({layer: Math.floor(texts[0].layers / 2)}) : Promise.resolve()).then(() => { root.dataset.ready = 'true'; });
  if (D.live) live();
})();
