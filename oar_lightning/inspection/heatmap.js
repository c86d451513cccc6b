'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const tip = document.getElementById('tip'), strips = 240;
const classes = {'<': 's-below', '>': 's-above', '?': 's-odd', '.': 's-out'};
const names = ['reasoning', 'conclusion', 'answer', 'tail'];
let shown = 'weight';

const strength = mark => mark === '.' ? -1 : '<>'.includes(mark) ? 9 : mark === '?' ? 8 : Math.abs(mark.charCodeAt(0) - 102);
const color = mark => '<>?'.includes(mark) ? 'var(--ink)' : mark === '.' ? 'var(--f)' : `var(--${mark})`;
const element = (tag, className, text) => Object.assign(document.createElement(tag), {className, textContent: text});

class Completion {
  constructor(section, values) {
    Object.assign(this, {section, values, tokens: null, at: -1});
    for (const part of ['strip', 'tokens', 'legend']) this[part + 'Box'] = section.querySelector('.' + part);
    this.details = section.querySelector('details');
    this.cursor = this.stripBox.querySelector('i');
    const text = this.tokensBox.textContent;
    let from = 0;
    this.texts = values.lengths.map(length => text.slice(from, from += length));
    this.details.addEventListener('toggle', () => this.details.open && this.build());
    this.stripBox.addEventListener('click', event => this.jump(this.place(event)));
    this.stripBox.addEventListener('mousemove', event => this.tell(this.place(event), this.stripBox, event.clientX));
    this.stripBox.addEventListener('mouseleave', hide);
    this.stripBox.addEventListener('keydown', event => this.key(event, Math.max(1, Math.round(this.texts.length / 100))));
    this.tokensBox.addEventListener('keydown', event => this.key(event, 1));
    this.tokensBox.addEventListener('mouseover', event => {
      const i = this.tokens ? this.tokens.indexOf(event.target) : -1;
      i < 0 ? hide() : this.tell(i, event.target);
    });
    this.tokensBox.addEventListener('mouseleave', hide);
    this.tokensBox.addEventListener('click', event => {
      const i = this.tokens ? this.tokens.indexOf(event.target) : -1;
      if (i >= 0) this.move(i);
    });
    for (const box of [this.stripBox, this.tokensBox]) box.addEventListener('blur', hide);
    if (this.details.open) this.build();
  }
  get marks() { return this.values.shades[shown]; }
  place(event) {
    const box = this.stripBox.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    return Math.min(this.texts.length - 1, Math.max(0, Math.floor(share * this.texts.length)));
  }
  build() {
    if (this.tokens) return;
    this.tokens = this.texts.map(text => element('span', '', text));
    this.tokensBox.replaceChildren(...this.tokens);
    this.paint();
  }
  paint() {
    const marks = this.marks, regions = this.values.regions;
    if (this.tokens) this.tokens.forEach((token, i) => {
      token.className = `t r${regions[i]} ${classes[marks[i]] || 's-' + marks[i]}` + (i === this.at ? ' current' : '');
    });
    const count = Math.min(strips, marks.length), stops = [], answers = [];
    for (let n = 0; n < count; n++) {
      let best = '.', answer = false;
      for (let i = Math.floor(n * marks.length / count); i < Math.floor((n + 1) * marks.length / count); i++) {
        if (strength(marks[i]) > strength(best)) best = marks[i];
        answer = answer || regions[i] === '2';
      }
      const range = `${(100 * n / count).toFixed(2)}% ${(100 * (n + 1) / count).toFixed(2)}%`;
      stops.push(`${color(best)} ${range}`);
      answers.push(`${answer ? 'var(--ink)' : 'transparent'} ${range}`);
    }
    this.stripBox.style.background = `linear-gradient(90deg, ${answers}) bottom / 100% 3px no-repeat, linear-gradient(90deg, ${stops})`;
    this.legend();
  }
  legend() {
    const legend = this.values.legends[shown], ramp = element('span', 'ramp', '');
    for (const [mark, value] of legend.levels) ramp.append(element('span', 's-' + mark, value));
    const parts = [element('span', '', shown), ramp];
    for (const [mark, sign, words] of [['<', '▼', 'below, lowest'], ['>', '▲', 'above, largest']]) {
      if (!legend[mark]) continue;
      const button = element('button', '', `${sign} ${legend[mark][0]} ${words} ${legend[mark][1]}`);
      button.title = 'go to the next one';
      button.addEventListener('click', () => this.next(1, found => found === mark));
      parts.push(button);
    }
    if (legend['?']) parts.push(element('span', '', `${legend['?']} not finite (struck through)`));
    this.legendBox.replaceChildren(...parts);
  }
  next(direction, wanted) {
    const marks = this.marks;
    for (let step = 1; step <= marks.length; step++) {
      const i = (Math.max(this.at, direction < 0 ? 0 : -1) + direction * step + 2 * marks.length) % marks.length;
      if (wanted(marks[i])) return this.jump(i);
    }
  }
  move(i) {
    if (this.tokens && this.at >= 0) this.tokens[this.at].classList.remove('current');
    this.at = i;
    this.cursor.className = 'on';
    this.cursor.style.left = `${100 * (i + .5) / this.texts.length}%`;
    this.stripBox.setAttribute('aria-valuenow', i + 1);
    this.stripBox.setAttribute('aria-valuetext', this.words(i));
    if (this.tokens) this.tokens[i].classList.add('current');
  }
  jump(i) {
    this.details.open = true;
    this.build();
    this.move(i);
    this.tokensBox.focus({preventScroll: true});
    this.tokens[i].scrollIntoView({block: 'center'});
    this.tell(i, this.tokens[i]);
  }
  key(event, step) {
    const last = this.texts.length - 1, at = Math.max(0, this.at), inText = event.currentTarget === this.tokensBox;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = {ArrowRight: this.at < 0 ? 0 : at + step, ArrowLeft: at - step, Home: 0, End: last}[event.key];
    if (to !== undefined) {
      const i = Math.min(last, Math.max(0, to));
      this.move(i);
      if (inText) this.tokens[i].scrollIntoView({block: 'nearest'});
      this.tell(i, inText ? this.tokens[i] : this.cursor);
    } else if (event.key === 'n' || event.key === 'p') {
      const top = Math.max(...[...this.marks].map(strength));
      this.next(event.key === 'n' ? 1 : -1, mark => strength(mark) >= Math.min(5, top));
    } else if (!inText && (event.key === 'Enter' || event.key === ' ')) this.jump(at);
    else if (event.key === 'Escape') return hide();
    else return;
    event.preventDefault();
  }
  words(i) {
    const lines = [`${i + 1}: "${this.texts[i].replace('\n', '')}" (${names[this.values.regions[i]]})`];
    for (const name in this.values.numbers) lines.push(`${name.padEnd(10)} ${this.values.numbers[name][i]}${name === 'entropy' ? ' nats' : ''}`);
    return lines.join('\n');
  }
  tell(i, beside, x) {
    tip.textContent = this.words(i);
    tip.style.display = 'block';
    const box = beside.getBoundingClientRect(), left = x === undefined ? box.left : x;
    tip.style.left = Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 8)) + 'px';
    const below = box.bottom + 8;
    tip.style.top = (below + tip.offsetHeight > innerHeight ? Math.max(4, box.top - tip.offsetHeight - 8) : below) + 'px';
  }
}

function hide() { tip.style.display = 'none'; }

const all = [...document.querySelectorAll('.completion')].flatMap((section, i) =>
  section.querySelector('.strip') ? [new Completion(section, data[i])] : []);
const paint = () => all.forEach(completion => completion.paint());
for (const input of document.querySelectorAll('input[name=shade]'))
  input.addEventListener('change', () => { shown = input.value; paint(); });
document.getElementById('open').addEventListener('click', () => all.forEach(c => { c.details.open = true; }));
document.getElementById('fold').addEventListener('click', () => all.forEach(c => { c.details.open = false; }));
document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement.style;
  const dark = root.colorScheme ? root.colorScheme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.colorScheme = dark ? 'light' : 'dark';
});
addEventListener('scroll', hide, {passive: true});
paint();
