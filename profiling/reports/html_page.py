"""The page that profiles are shown in: markup, style and script. @TITLE@ and @DATA@ are put in by report_html."""

from __future__ import annotations

STYLE = """
:root { --ink:#1c2127; --soft:#5d6873; --line:#dfe4e8; --card:#fff; --back:#f4f6f8; --heat:0,114,178;
  --attention:#d55e00; --gemm:#0072b2; --convolution:#3b9fd9; --norm:#009e73; --pointwise:#e69f00; --reduction:#c46a9c;
  --reformat:#9aa3ab; --opaque:#4a3f6b; --other:#b8a99a; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6eaee; --soft:#98a4b0; --line:#2d353d; --card:#1a2026;
  --back:#11161b; --heat:59,159,217; --gemm:#2f8fd0; --opaque:#8d7fc0; } }
* { box-sizing:border-box } body { margin:0; padding:24px; background:var(--back); color:var(--ink);
  font:14px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; }
main { max-width:1240px; margin:0 auto; display:grid; gap:16px; grid-template-columns:repeat(12,minmax(0,1fr)); }
header { grid-column:1/-1 } h1 { font-size:22px; margin:0 0 4px } h2 { font-size:15px; margin:0 0 12px }
p { margin:0 0 10px }
section { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:16px; min-width:0 }
.soft { color:var(--soft) } .six { grid-column:span 6 } .all { grid-column:1/-1 } .three { grid-column:span 3 }
@media (max-width:900px) { .six,.three { grid-column:1/-1 } }
.big { font-size:24px; font-variant-numeric:tabular-nums } .tile h2 { margin:0; font-weight:500; color:var(--soft) }
.about { display:flex; flex-wrap:wrap; gap:2px 18px; color:var(--soft); font-size:13px }
.about b { font-weight:600; color:var(--ink) }
.bars { display:grid; grid-template-columns:minmax(90px,max-content) 1fr max-content max-content; gap:5px 10px;
  align-items:center; font-variant-numeric:tabular-nums }
.short { max-height:262px; overflow:auto; padding-right:4px }
.bars .name { overflow-wrap:anywhere } .bars .num { text-align:right }
.bar { display:flex; height:16px; background:color-mix(in srgb,var(--line) 55%,transparent); border-radius:3px;
  overflow:hidden } .bar i { display:block; height:100% }
.legend { display:flex; flex-wrap:wrap; gap:4px 14px; margin-top:12px; font-size:13px; color:var(--soft) }
.legend i { display:inline-block; width:10px; height:10px; border-radius:2px; margin-right:5px }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; font-size:13px }
th,td { padding:4px 8px; text-align:right; border-bottom:1px solid var(--line); white-space:nowrap }
th.word,td.word { text-align:left; white-space:normal; overflow-wrap:anywhere }
td.op { min-width:110px } td.name { min-width:200px } td.module { min-width:230px }
#layers th { position:sticky; top:0; background:var(--card); padding:0; box-shadow:0 1px var(--line) }
#layers th button { font:inherit; font-weight:600; color:inherit; background:none; border:0; padding:6px 8px;
  width:100%; text-align:inherit; cursor:pointer; white-space:nowrap }
th[aria-sort=ascending] button::after { content:" \\2191" }
th[aria-sort=descending] button::after { content:" \\2193" }
.scroll { overflow:auto; max-height:620px } .wide { overflow-x:auto }
.heat td.cell { text-align:center; border:2px solid var(--card) }
.heat td.slow { outline:2px solid var(--attention); outline-offset:-2px; font-weight:600 }
input { font:inherit; padding:6px 10px; width:min(340px,100%); border:1px solid var(--line); border-radius:6px;
  background:var(--back); color:inherit; margin-bottom:10px }
.tag { display:inline-block; white-space:nowrap; padding:0 7px; border-radius:9px; color:#fff; font-size:12px }
svg { width:100%; height:auto; display:block } svg text { fill:var(--soft); font-size:12px }
svg .grid { stroke:var(--line) } svg .roof { stroke:var(--ink); stroke-width:1.5; fill:none }
"""

SCRIPT = """
const data = JSON.parse(document.getElementById('data').textContent);
const kinds = data.order.filter(k => data.kinds.some(row => row.name === k));
const color = kind => `var(--${data.order.includes(kind) ? kind : 'other'})`;
const ms = value => value.toFixed(value >= 100 ? 1 : 3);
const percent = value => value == null ? '' : (100 * value).toFixed(1) + ' %';
const svgNames = 'http://www.w3.org/2000/svg';

function add(parent, tag, attributes = {}, text = null) {
  const node = parent.namespaceURI === svgNames || tag === 'svg'
    ? document.createElementNS(svgNames, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return parent.appendChild(node);
}
const at = id => document.getElementById(id);

function tiles() {
  const rows = [['wall time p50', data.wall[0], 'one execute, no profiler'], ['wall time p95', data.wall[1], ''],
    [`sum of ${data.layers.length} layers`, data.sum[0],
      `mean of ${data.runs} executes, profiled; p50 ${ms(data.sum[1])} ms`],
    ['wall p50 less layer sum p50', data.gap[0], data.gap[1]]];
  for (const [name, value, note] of rows) {
    const tile = document.createElement('section');
    tile.className = 'tile three';
    add(tile, 'h2', {}, name);
    add(tile, 'div', {class: 'big'}, ms(value) + ' ms');
    add(tile, 'div', {class: 'soft'}, note);
    at('main').insertBefore(tile, at('kinds-card'));
  }
  for (const [name, value] of data.about) {
    const span = add(at('about'), 'span'); add(span, 'b', {}, name + ' '); span.append(value);
  }
  for (const note of data.notes) add(at('notes'), 'p', {}, note);
}

function bars(target, rows, parts) {
  const longest = Math.max(...rows.map(row => row.ms), 1e-9);
  for (const row of rows) {
    add(target, 'div', {class: 'name'}, row.name);
    const bar = add(target, 'div', {class: 'bar', title: `${row.layers} layers`});
    for (const [kind, value] of parts(row))
      add(bar, 'i', {style: `width:${100 * value / longest}%;background:${color(kind)}`,
        title: `${row.name}: ${kind} ${ms(value)} ms`});
    add(target, 'div', {class: 'num'}, ms(row.ms) + ' ms');
    add(target, 'div', {class: 'num soft'}, percent(row.share));
  }
}

function rollups() {
  bars(at('kinds'), data.kinds, row => [[row.name, row.ms]]);
  const held = {};
  for (const layer of data.layers) {
    const group = held[layer.group] ??= {};
    group[layer.kind] = (group[layer.kind] ?? 0) + layer.ms;
  }
  bars(at('modules'), data.modules, row => kinds.filter(k => held[row.name]?.[k]).map(k => [k, held[row.name][k]]));
  for (const kind of kinds) {
    const item = add(at('legend'), 'span'); add(item, 'i', {style: `background:${color(kind)}`}); item.append(kind);
  }
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  return (sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2) || 1e-9;
}

function heat() {
  for (const family of data.blocks) {
    const card = add(at('blocks'), 'div', {class: 'wide'});
    add(card, 'p', {class: 'soft'},
      `${family.prefix}: ${family.verdict}. Milliseconds on average; framed: slower than its brothers by medians.`);
    const table = add(card, 'table', {class: 'heat'}), head = add(table, 'tr');
    add(head, 'th', {class: 'word'}, 'part');
    for (const index of family.indices) add(head, 'th', {style: 'text-align:center'}, index);
    const whole = family.parts.at(-1).ms.reduce((sum, value) => sum + value, 0);
    const most = Math.max(...family.parts.slice(0, -1).flatMap(part => part.ms), 1e-9);
    for (const part of family.parts) {
      const row = add(table, 'tr'), middle = median(part.median), isSum = part === family.parts.at(-1);
      add(row, isSum ? 'th' : 'td', {class: 'word'}, part.name);
      for (const [index, value] of part.ms.entries()) {
        const typical = part.median[index], isSlow = typical > 1.1 * middle && typical - middle > 0.01 * whole;
        const heat = isSum ? 0 : 0.6 * Math.sqrt(value / most);
        add(row, 'td', {class: isSlow ? 'cell slow' : 'cell', style: `background:rgba(var(--heat),${heat.toFixed(3)})`,
          title: `median ${ms(typical)} ms, ${(typical / middle).toFixed(2)} of its brothers'`}, ms(value));
      }
    }
  }
  if (!data.blocks.length) at('blocks-card').remove();
}

const power = exponent => String(Number((10 ** exponent).toPrecision(1)));

function roofline() {
  const dots = data.layers.filter(layer => layer.gflops > 0 && layer.bytes > 0);
  if (!dots.length) return at('roofline-card').remove();
  const W = 1180, H = 400, left = 64, right = 34, bottom = 42;
  const x = layer => layer.flops / layer.bytes, y = layer => layer.gflops;
  const [peak, width] = data.ceilings ? data.ceilings.map(value => value / 1e9) : [0, 0];
  const range = values => [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))];
  const [x0, x1] = range(dots.map(x).concat(peak ? [peak / width * 4] : []));
  const [y0, y1] = range(dots.map(y).concat(peak ? [peak * 1.5] : []));
  const px = value => left + (W - left - right) * (Math.log10(value) - x0) / Math.max(x1 - x0, 1);
  const py = value => H - bottom - (H - bottom - 12) * (Math.log10(value) - y0) / Math.max(y1 - y0, 1);
  const svg = add(at('roofline'), 'svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': 'roofline'});
  for (let e = x0; e <= x1; e++) {
    add(svg, 'line', {class: 'grid', x1: px(10 ** e), x2: px(10 ** e), y1: 12, y2: H - bottom});
    add(svg, 'text', {x: px(10 ** e), y: H - bottom + 16, 'text-anchor': 'middle'}, power(e));
  }
  for (let e = y0; e <= y1; e++) {
    add(svg, 'line', {class: 'grid', x1: left, x2: W - right, y1: py(10 ** e), y2: py(10 ** e)});
    add(svg, 'text', {x: left - 8, y: py(10 ** e) + 4, 'text-anchor': 'end'}, power(e));
  }
  add(svg, 'text', {x: (W + left) / 2, y: H - 6, 'text-anchor': 'middle'}, 'operations per byte');
  add(svg, 'text', {x: 14, y: H / 2, 'text-anchor': 'middle', transform: `rotate(-90 14 ${H / 2})`}, 'GFLOP/s');
  if (peak) {
    const low = 10 ** x0, ridge = peak / width, first = Math.max(low, 10 ** y0 / width);
    add(svg, 'path', {class: 'roof',
      d: `M${px(first)},${py(first * width)} L${px(ridge)},${py(peak)} L${px(10 ** x1)},${py(peak)}`});
    add(at('roofline'), 'p', {class: 'soft'},
      `Line: ${data.ceilings[2]}. Layers whose data stays in a cache may lie above its slope.`);
  }
  for (const layer of [...dots].sort((a, b) => b.share - a.share)) {
    const dot = add(svg, 'circle', {cx: px(x(layer)), cy: py(y(layer)), r: 2.5 + 60 * Math.sqrt(layer.share) / 2,
      style: `fill:${color(layer.kind)}`, 'fill-opacity': 0.55, stroke: 'var(--card)', 'stroke-width': 0.7});
    add(dot, 'title', {}, `${layer.name}\\n${layer.kind}, ${ms(layer.ms)} ms, ${percent(layer.share)}\\n` +
      `${layer.gflops.toFixed(1)} GFLOP/s, ${layer.gbs.toFixed(2)} GB/s` +
      (layer.roof == null ? '' : `\\n${percent(layer.roof)} of its roof (${layer.bound})`));
  }
}

const columns = [['layer', 'name', 'word name'], ['op', 'op', 'word op'], ['kind', 'kind', 'word'],
  ['module', 'module', 'word module'], ['ms', 'ms', ''], ['median', 'median', ''], ['share', 'share', ''],
  ['GFLOP/s', 'gflops', ''], ['GB/s', 'gbs', ''], ['bound', 'bound', ''], ['of roof', 'roof', '']];
let sorting = {key: 'ms', down: true};

function rowOf(layer) {
  const row = document.createElement('tr');
  const number = value => value == null ? '' : value < 1 ? value.toPrecision(2) : value.toFixed(1);
  const cells = {...layer, ms: ms(layer.ms), median: ms(layer.median), share: percent(layer.share),
    gflops: number(layer.gflops), gbs: number(layer.gbs), roof: percent(layer.roof)};
  for (const [, key, kind] of columns) {
    const cell = add(row, 'td', {class: kind});
    if (key === 'kind') add(cell, 'span', {class: 'tag', style: `background:${color(layer.kind)}`}, layer.kind);
    else cell.textContent = cells[key] ?? '';
    if (key === 'name' && layer.holds) add(cell, 'div', {class: 'soft'}, layer.holds);
  }
  return row;
}

function fill() {
  const words = at('filter').value.toLowerCase(), {key, down} = sorting;
  const text = layer => [layer.name, layer.op, layer.kind, layer.module, layer.holds].join(' ').toLowerCase();
  const rows = data.layers.filter(layer => text(layer).includes(words));
  const order = (a, b) => (a == null) - (b == null) || (typeof a === 'string' ? a.localeCompare(b) : a - b);
  const sign = (a, b) => a[key] == null || b[key] == null || !down ? 1 : -1;
  rows.sort((a, b) => sign(a, b) * order(a[key], b[key]));
  at('rows').replaceChildren(...rows.map(rowOf));
  const whole = rows.reduce((sum, layer) => sum + layer.ms, 0);
  at('count').textContent = `${rows.length} of ${data.layers.length} layers, ${ms(whole)} ms, ` +
    percent(rows.reduce((sum, layer) => sum + layer.share, 0));
  for (const head of at('head').children)
    head.setAttribute('aria-sort', head.dataset.key !== key ? 'none' : down ? 'descending' : 'ascending');
}

function table() {
  for (const [name, key, kind] of columns) {
    const head = add(at('head'), 'th', {class: kind, 'data-key': key});
    add(head, 'button', {type: 'button'}, name).addEventListener('click', () => {
      sorting = {key, down: sorting.key === key ? !sorting.down : !kind.includes('word')};
      fill();
    });
  }
  at('filter').addEventListener('input', fill);
  fill();
}

tiles(); rollups(); heat(); roofline(); table();
"""

BODY = """
<main id="main">
<header><h1>@TITLE@</h1><div id="about" class="about"></div>
<div id="notes"></div></header>
<section class="six" id="kinds-card"><h2>By kind of work</h2><div id="kinds" class="bars"></div></section>
<section class="six"><h2>By module</h2><div class="short"><div id="modules" class="bars"></div></div>
<div id="legend" class="legend"></div></section>
<section class="all" id="blocks-card"><h2>Equal blocks side by side</h2><div id="blocks"></div></section>
<section class="all" id="roofline-card"><h2>Roofline: large is hot, low is slow</h2><div id="roofline"></div></section>
<section class="all"><h2>Layers</h2>
<input id="filter" type="search" placeholder="name, operator, kind, module" aria-label="Filter layers">
<span id="count" class="soft"></span>
<div class="scroll"><table id="layers"><thead><tr id="head"></tr></thead><tbody id="rows"></tbody></table></div>
</section>
</main>
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>@TITLE@</title><style>{STYLE}</style></head><body>{BODY}
<script type="application/json" id="data">@DATA@</script><script>{SCRIPT}</script></body></html>
"""
