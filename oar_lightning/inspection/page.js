'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const tip = document.getElementById('tip'), strips = 240;

const strength = mark => mark === '.' ? -1 : '<>'.includes(mark) ? 9 : mark === '?' ? 8 : Math.abs(mark.charCodeAt(0) - 102);
const element = (tag, className, text) => Object.assign(document.createElement(tag), {className, textContent: text});

function hide() { tip.style.display = 'none'; }

// A completion's strip, a slider over all of its tokens, and its text. What it shows of a token is a subclass's:
// paint(), words(i), strong() (which tokens n and p go to).
class Reader {
  constructor(section, lengths) {
    Object.assign(this, {section, tokens: null, at: -1});
    for (const part of ['strip', 'tokens']) this[part + 'Box'] = section.querySelector('.' + part);
    this.details = section.querySelector('details');
    this.cursor = this.stripBox.querySelector('i');
    const text = this.tokensBox.textContent;
    let from = 0;
    this.texts = lengths.map(length => text.slice(from, from += length));
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
  }
  place(event) {
    const box = this.stripBox.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    return Math.min(this.texts.length - 1, Math.max(0, Math.floor(share * this.texts.length)));
  }
  build() {
    if (this.tokens) return;
    this.tokens = this.texts.map(text => element('span', 't', text));
    this.tokensBox.replaceChildren(...this.tokens);
    this.paint();
  }
  // The tokens of each place of a strip: [first, after the last, from %, to %].
  places() {
    const size = this.texts.length, count = Math.min(strips, size);
    return Array.from({length: count}, (_, n) =>
      [Math.floor(n * size / count), Math.floor((n + 1) * size / count), 100 * n / count, 100 * (n + 1) / count]);
  }
  next(direction, wanted) {
    const size = this.texts.length;
    for (let step = 1; step <= size; step++) {
      const i = (Math.max(this.at, direction < 0 ? 0 : -1) + direction * step + 2 * size) % size;
      if (wanted(i)) return this.jump(i);
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
    } else if (event.key === 'n' || event.key === 'p') this.next(event.key === 'n' ? 1 : -1, this.strong());
    else if (!inText && (event.key === 'Enter' || event.key === ' ')) this.jump(at);
    else if (event.key === 'Escape') return hide();
    else return;
    event.preventDefault();
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

// What all pages have: unfold all, fold all, light or dark.
function start(all) {
  document.getElementById('open').addEventListener('click', () => all.forEach(c => { c.details.open = true; }));
  document.getElementById('fold').addEventListener('click', () => all.forEach(c => { c.details.open = false; }));
  document.getElementById('theme').addEventListener('click', () => {
    const root = document.documentElement.style;
    const dark = root.colorScheme ? root.colorScheme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.colorScheme = dark ? 'light' : 'dark';
  });
  addEventListener('scroll', hide, {passive: true});
  all.forEach(completion => completion.paint());
}
