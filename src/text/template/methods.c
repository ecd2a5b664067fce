/* Methods of texts and dicts, functions, attributes. */
#include "text/template/jinja.h"

#include <locale.h>
#include <time.h>
#include <utf8proc.h>
#include "base/clock.h"
#include "text/normalize.h"

typedef const struct jinja_call *call_args;
#define METHOD(name) static struct jinja_value method_##name(struct jinja_run *r, call_args c)

/* --- characters --- */

/* The character at text[0..bytes), and its bytes; -1: none. */
static utf8proc_int32_t method_character(const char *text, size_t bytes, size_t *taken) {
  utf8proc_int32_t c = -1;
  *taken = wn_jinja_character(text, bytes);
  if (utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)*taken, &c) < 0) c = -1;
  return c;
}
static bool method_is_letter(utf8proc_int32_t c) { /* with case, as Python's title() asks */
  return c >= 0 && (utf8proc_toupper(c) != c || utf8proc_tolower(c) != c);
}
static bool method_stripped(const struct jinja_value *text, size_t at, size_t n, const struct jinja_value *set) {
  size_t taken;
  if (!set) return wn_unicode_is_space(method_character(text->as.text + at, n, &taken));
  return set->count && memmem(set->as.text, set->count, text->as.text + at, n) != NULL;
}

struct jinja_value wn_jinja_strip(struct jinja_run *r, const struct jinja_value *text, const struct jinja_value *set,
                                  int sides) {
  size_t begin = 0, end = text->kind == JINJA_TEXT ? text->count : 0;
  if (set && set->kind != JINJA_TEXT) set = NULL;
  if (!wn_jinja_step(r, end)) return (struct jinja_value){0};
  while (sides & 1 && begin < end) {
    const size_t n = wn_jinja_character(text->as.text + begin, end - begin);
    if (!method_stripped(text, begin, n, set) || !wn_jinja_step(r, set ? set->count : 0)) break;
    begin += n;
  }
  while (sides & 2 && begin < end) {
    size_t n = 1;
    while (n < 4 && n < end - begin && (text->as.text[end - n] & 0xc0) == 0x80) n++;
    if (wn_jinja_character(text->as.text + end - n, n) != n) n = 1;
    if (!method_stripped(text, end - n, n, set) || !wn_jinja_step(r, set ? set->count : 0)) break;
    end -= n;
  }
  return text->kind == JINJA_TEXT ? wn_jinja_part(text, begin, end) : jinja_text("", 0);
}

static struct jinja_value method_replace_all(struct jinja_run *r, const struct jinja_value *text,
                                             const struct jinja_value *old, const struct jinja_value *new,
                                             int64_t most) {
  struct jinja_buffer b = {.run = r};
  size_t at = 0, done = 0;
  if (text->kind != JINJA_TEXT || old->kind != JINJA_TEXT || new->kind != JINJA_TEXT)
    return wn_jinja_fail(r, WN_ERR_FORMAT, "replace: expected texts");
  while (most != 0 && at <= text->count && wn_jinja_step(r, 0)) {
    const char *found = old->count ? memmem(text->as.text + at, text->count - at, old->as.text, old->count)
                                   : text->as.text + at; /* an empty one is before each character and at the end */
    if (!found) break;
    const size_t next = (size_t)(found - text->as.text);
    struct jinja_value part = wn_jinja_part(text, done, next);
    wn_jinja_add_text(&b, &part);
    wn_jinja_add_text(&b, new);
    done = next + old->count;
    at = old->count ? done : next < text->count ? next + wn_jinja_character(found, text->count - next) : next + 1;
    most -= most > 0;
  }
  const struct jinja_value rest = wn_jinja_part(text, done, text->count);
  wn_jinja_add_text(&b, &rest);
  return wn_jinja_done(&b);
}

struct jinja_value wn_jinja_case(struct jinja_run *r, const struct jinja_value *text, enum jinja_case how) {
  struct jinja_buffer b = {.run = r};
  bool begins = true;
  for (size_t at = 0, n; at < text->count && !r->failed; at += n) {
    const utf8proc_int32_t c = method_character(text->as.text + at, text->count - at, &n);
    utf8proc_uint8_t bytes[4];
    const bool up = how == CASE_UPPER || (how != CASE_LOWER && begins);
    const utf8proc_int32_t other = c < 0                                    ? c
                                   : !up                                    ? utf8proc_tolower(c)
                                   : how == CASE_UPPER || how == CASE_WORDS ? utf8proc_toupper(c)
                                                                            : utf8proc_totitle(c);
    const utf8proc_ssize_t count = other < 0 ? 0 : utf8proc_encode_char(other, bytes);
    const enum wn_origin origin = text->from ? text->from[at] : text->origin;
    if (count > 0)
      wn_jinja_add(&b, (const char *)bytes, (size_t)count, origin);
    else
      wn_jinja_add(&b, text->as.text + at, n, origin);
    begins = how == CASE_TITLE   ? !method_is_letter(c)
             : how == CASE_WORDS ? c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || wn_unicode_is_space(c)
                                 : false;
  }
  return wn_jinja_done(&b);
}

/* --- lists of parts --- */

struct parts {
  struct jinja_run *run;
  struct jinja_value *items;
  size_t count, room;
};
static void parts_add(struct parts *p, const struct jinja_value *v) {
  if (p->count == p->room) {
    struct jinja_value *wider = wn_jinja_memory(p->run, 2 * p->room + 8, sizeof *wider);
    if (!wider) return;
    if (p->count) memcpy(wider, p->items, p->count * sizeof *wider);
    p->items = wider, p->room = 2 * p->room + 8;
  }
  p->items[p->count++] = *v;
}
static void parts_add_range(struct parts *p, const struct jinja_value *text, size_t begin, size_t end) {
  const struct jinja_value part = wn_jinja_part(text, begin, end);
  parts_add(p, &part);
}

struct jinja_value wn_jinja_lines(struct jinja_run *r, const struct jinja_value *text) {
  struct parts p = {.run = r};
  size_t begin = 0;
  for (size_t at = 0; at < text->count && wn_jinja_step(r, 0); at++) {
    const char c = text->as.text[at];
    if (c != '\n' && c != '\r' && c != '\v' && c != '\f') continue;
    parts_add_range(&p, text, begin, at);
    if (c == '\r' && at + 1 < text->count && text->as.text[at + 1] == '\n') at++;
    begin = at + 1;
  }
  if (begin < text->count) parts_add_range(&p, text, begin, text->count);
  return jinja_list(p.items, p.count);
}

/* Splits at white space. */
static struct jinja_value method_words(struct jinja_run *r, const struct jinja_value *text, int64_t most) {
  struct parts p = {.run = r};
  struct jinja_value rest = wn_jinja_strip(r, text, NULL, 1);
  while (rest.count && wn_jinja_step(r, 0)) {
    size_t end = 0, n;
    while (end < rest.count && (most >= 0 && p.count == (size_t)most
                                    ? true
                                    : !wn_unicode_is_space(method_character(rest.as.text + end, rest.count - end, &n))))
      end += wn_jinja_character(rest.as.text + end, rest.count - end);
    parts_add_range(&p, &rest, 0, end);
    rest = wn_jinja_part(&rest, end, rest.count);
    rest = wn_jinja_strip(r, &rest, NULL, 1);
  }
  return jinja_list(p.items, p.count);
}

static size_t method_search(struct jinja_run *r, const struct jinja_value *text, const struct jinja_value *what,
                            size_t end, bool last) {
  const char *data = text->as.text, *at;
  if (what->count == 0) return last ? end : 0;
  if (!last) return (at = memmem(data, end, what->as.text, what->count)) ? (size_t)(at - data) : SIZE_MAX;
  for (size_t i = what->count > end ? 0 : end - what->count + 1; i-- > 0;)
    if (data[i] == *what->as.text && wn_jinja_step(r, what->count) && !memcmp(data + i, what->as.text, what->count))
      return i;
  return SIZE_MAX;
}

static int64_t method_count(struct jinja_run *r, call_args c, int at) {
  if (!c->given[at]) return -1;
  if (!jinja_whole(&c->at[at]))
    wn_jinja_fail(r, WN_ERR_FORMAT, "expected an integer, not %s", wn_jinja_kind(&c->at[at]));
  return jinja_whole(&c->at[at]) ? jinja_whole_of(&c->at[at]) : -1;
}
static bool method_needs(struct jinja_run *r, call_args c, int at) {
  if (c->at[at].kind == JINJA_TEXT) return true;
  wn_jinja_fail(r, WN_ERR_FORMAT, "expected a text, not %s", wn_jinja_kind(&c->at[at]));
  return false;
}

METHOD(split) { /* sep, maxsplit */
  struct parts p = {.run = r};
  struct jinja_value rest = c->self;
  int64_t most = method_count(r, c, 1);
  if (!c->given[0] || c->at[0].kind == JINJA_NONE) return method_words(r, &c->self, most);
  if (!method_needs(r, c, 0) || c->at[0].count == 0) return wn_jinja_fail(r, WN_ERR_FORMAT, "split: empty separator");
  for (size_t at; most != 0 && wn_jinja_step(r, 0); most -= most > 0) {
    at = method_search(r, &rest, &c->at[0], rest.count, false);
    if (at == SIZE_MAX) break;
    parts_add_range(&p, &rest, 0, at);
    rest = wn_jinja_part(&rest, at + c->at[0].count, rest.count);
  }
  parts_add(&p, &rest);
  return wn_jinja_step(r, c->self.count) ? jinja_list(p.items, p.count) : rest;
}
METHOD(rsplit) { /* sep, maxsplit */
  struct parts p = {.run = r};
  int64_t most = method_count(r, c, 1);
  size_t end = c->self.count;
  if (!c->given[0] || c->at[0].kind == JINJA_NONE || most < 0) return method_split(r, c);
  if (!method_needs(r, c, 0) || c->at[0].count == 0) return wn_jinja_fail(r, WN_ERR_FORMAT, "rsplit: empty separator");
  for (size_t at; most > 0 && wn_jinja_step(r, end); most--) {
    at = method_search(r, &c->self, &c->at[0], end, true);
    if (at == SIZE_MAX) break;
    parts_add_range(&p, &c->self, at + c->at[0].count, end);
    end = at;
  }
  parts_add_range(&p, &c->self, 0, end);
  for (size_t i = 0; p.items && i < p.count / 2; i++) {
    const struct jinja_value other = p.items[i];
    p.items[i] = p.items[p.count - 1 - i];
    p.items[p.count - 1 - i] = other;
  }
  return jinja_list(p.items, p.count);
}
static struct jinja_value method_cut(struct jinja_run *r, call_args c, bool last) {
  struct parts p = {.run = r};
  if (!method_needs(r, c, 0) || !wn_jinja_step(r, c->self.count)) return (struct jinja_value){0};
  const size_t at = method_search(r, &c->self, &c->at[0], c->self.count, last), n = at == SIZE_MAX ? 0 : c->at[0].count;
  const size_t head = at != SIZE_MAX ? at : last ? 0 : c->self.count;
  parts_add_range(&p, &c->self, 0, head);
  parts_add_range(&p, &c->self, head, head + n);
  parts_add_range(&p, &c->self, head + n, c->self.count);
  struct jinja_value out = jinja_list(p.items, p.count);
  out.kind = JINJA_TUPLE;
  return out;
}
METHOD(join) {
  const struct jinja_value all = wn_jinja_items(r, &c->at[0]);
  struct jinja_buffer b = {.run = r};
  for (size_t i = 0; i < all.count && wn_jinja_step(r, 0); i++) {
    if (all.as.items[i].kind != JINJA_TEXT)
      return wn_jinja_fail(r, WN_ERR_FORMAT, "join: expected texts, not %s", wn_jinja_kind(&all.as.items[i]));
    if (i > 0) wn_jinja_add_text(&b, &c->self);
    wn_jinja_add_text(&b, &all.as.items[i]);
  }
  return wn_jinja_done(&b);
}

/* --- texts --- */

METHOD(replace) {
  const struct jinja_value old = wn_jinja_string(r, &c->at[0]), new = wn_jinja_string(r, &c->at[1]);
  return method_replace_all(r, &c->self, &old, &new, method_count(r, c, 2));
}
/* Does the text begin (end) with this, or with one of these? */
static bool method_affix(const struct jinja_value *text, const struct jinja_value *what, bool ends) {
  const size_t n = what->count;
  return n <= text->count && (n == 0 || !memcmp(text->as.text + (ends ? text->count - n : 0), what->as.text, n));
}
static struct jinja_value method_affixes(struct jinja_run *r, call_args c, bool ends) {
  const bool several = c->at[0].kind == JINJA_TUPLE;
  bool found = false;
  if (!several && !method_needs(r, c, 0)) return (struct jinja_value){0};
  for (size_t i = 0; several && i < c->at[0].count && !found && wn_jinja_step(r, 0); i++)
    found = c->at[0].as.items[i].kind == JINJA_TEXT && method_affix(&c->self, &c->at[0].as.items[i], ends);
  return jinja_bool(several ? found : method_affix(&c->self, &c->at[0], ends));
}
METHOD(removeprefix) {
  if (!method_needs(r, c, 0) || !method_affix(&c->self, &c->at[0], false)) return c->self;
  return wn_jinja_part(&c->self, c->at[0].count, c->self.count);
}
METHOD(removesuffix) {
  if (!method_needs(r, c, 0) || !method_affix(&c->self, &c->at[0], true)) return c->self;
  return wn_jinja_part(&c->self, 0, c->self.count - c->at[0].count);
}
static struct jinja_value method_index(struct jinja_run *r, call_args c, bool last, bool must) {
  if (!method_needs(r, c, 0) || !wn_jinja_step(r, c->self.count)) return (struct jinja_value){0};
  const size_t at = method_search(r, &c->self, &c->at[0], c->self.count, last);
  if (at == SIZE_MAX) return must ? wn_jinja_fail(r, WN_ERR_FORMAT, "substring not found") : jinja_int(-1);
  const struct jinja_value before = wn_jinja_part(&c->self, 0, at);
  return jinja_int((int64_t)wn_jinja_characters(r, &before));
}
METHOD(count_of) {
  int64_t n = 0;
  struct jinja_value rest = c->self;
  if (!method_needs(r, c, 0)) return (struct jinja_value){0};
  if (c->at[0].count == 0) return jinja_int((int64_t)wn_jinja_characters(r, &c->self) + 1);
  for (size_t at; wn_jinja_step(r, 0) && (at = method_search(r, &rest, &c->at[0], rest.count, false)) != SIZE_MAX; n++)
    rest = wn_jinja_part(&rest, at + c->at[0].count, rest.count);
  return jinja_int(n);
}
/* Are there characters, and all of a category? */
static struct jinja_value method_all(struct jinja_run *r, call_args c, bool (*is)(utf8proc_int32_t)) {
  bool all = c->self.count > 0;
  for (size_t at = 0, n; all && at < c->self.count && wn_jinja_step(r, 0); at += n)
    all = is(method_character(c->self.as.text + at, c->self.count - at, &n));
  return jinja_bool(all);
}
static bool method_is_digit(utf8proc_int32_t c) {
  return c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}
static bool method_is_alpha(utf8proc_int32_t c) {
  return c >= 0 && utf8proc_category(c) >= UTF8PROC_CATEGORY_LU && utf8proc_category(c) <= UTF8PROC_CATEGORY_LO;
}
static bool method_is_alnum(utf8proc_int32_t c) {
  return method_is_digit(c) || method_is_alpha(c);
}

/* --- dicts --- */

METHOD(get) { /* key, default */
  const struct jinja_value *found = wn_jinja_find(r, c->self.as.pairs, c->self.count, &c->at[0]);
  return found ? *found : c->given[1] ? c->at[1] : jinja_none();
}
METHOD(items) {
  struct parts p = {.run = r};
  for (size_t i = 0; i < c->self.count && wn_jinja_step(r, 0); i++) {
    struct jinja_value *pair = wn_jinja_memory(r, 2, sizeof *pair);
    if (!pair) break;
    pair[0] = c->self.as.pairs[i].key, pair[1] = c->self.as.pairs[i].value;
    parts_add(&p, &(struct jinja_value){.kind = JINJA_TUPLE, .as.items = pair, .count = 2});
  }
  return jinja_list(p.items, p.count);
}
METHOD(keys) {
  return wn_jinja_items(r, &c->self);
}
METHOD(values) {
  struct jinja_value *items = wn_jinja_memory(r, c->self.count, sizeof *items);
  for (size_t i = 0; items && i < c->self.count; i++) items[i] = c->self.as.pairs[i].value;
  return jinja_list(items, items ? c->self.count : 0);
}

/* Methods of one expression: name, parameters, what it gives. */
#define SHORT(X)                                                                                                       \
  X(splitlines, "", wn_jinja_lines(r, &c->self))                                                                       \
  X(partition, "sep ", method_cut(r, c, false))                                                                        \
  X(rpartition, "sep ", method_cut(r, c, true))                                                                        \
  X(strip, "chars ", wn_jinja_strip(r, &c->self, c->given[0] ? &c->at[0] : NULL, 3))                                   \
  X(lstrip, "chars ", wn_jinja_strip(r, &c->self, c->given[0] ? &c->at[0] : NULL, 1))                                  \
  X(rstrip, "chars ", wn_jinja_strip(r, &c->self, c->given[0] ? &c->at[0] : NULL, 2))                                  \
  X(upper, "", wn_jinja_case(r, &c->self, CASE_UPPER))                                                                 \
  X(lower, "", wn_jinja_case(r, &c->self, CASE_LOWER))                                                                 \
  X(title, "", wn_jinja_case(r, &c->self, CASE_TITLE))                                                                 \
  X(capitalize, "", wn_jinja_case(r, &c->self, CASE_FIRST))                                                            \
  X(startswith, "prefix ", method_affixes(r, c, false))                                                                \
  X(endswith, "suffix ", method_affixes(r, c, true))                                                                   \
  X(find, "sub ", method_index(r, c, false, false))                                                                    \
  X(rfind, "sub ", method_index(r, c, true, false))                                                                    \
  X(index, "sub ", method_index(r, c, false, true))                                                                    \
  X(isdigit, "", method_all(r, c, method_is_digit))                                                                    \
  X(isalpha, "", method_all(r, c, method_is_alpha))                                                                    \
  X(isalnum, "", method_all(r, c, method_is_alnum))                                                                    \
  X(isspace, "", method_all(r, c, wn_unicode_is_space))
#define SHORT_METHOD(name, params, value)                                                                              \
  static struct jinja_value short_##name(struct jinja_run *r, call_args c) {                                           \
    return value;                                                                                                      \
  }
SHORT(SHORT_METHOD)
METHOD(words_of) {
  return wn_jinja_case(r, &c->self, CASE_WORDS);
}

#define SHORT_ROW(name, params, value) {#name, params, short_##name},
static const struct jinja_spec text_methods[] = {
    SHORT(SHORT_ROW) /* and the longer ones */
    {"split", "sep maxsplit ", method_split},
    {"rsplit", "sep maxsplit ", method_rsplit},
    {"join", "iterable ", method_join},
    {"replace", "old new count ", method_replace},
    {"removeprefix", "prefix ", method_removeprefix},
    {"removesuffix", "suffix ", method_removesuffix},
    {"count", "sub ", method_count_of},
};
/* Filters that turn their value into a text and do the same. */
static const struct jinja_spec text_filters[] = {
    {"trim", "$chars ", short_strip},      {"upper", "$", short_upper},
    {"lower", "$", short_lower},           {"title", "$", method_words_of},
    {"capitalize", "$", short_capitalize}, {"replace", "$old new count ", method_replace},
};
static const struct jinja_spec dict_methods[] = {
    {"get", "key default ", method_get},
    {"items", "", method_items},
    {"keys", "", method_keys},
    {"values", "", method_values},
};

/* --- functions --- */

METHOD(range) {
  const struct jinja_args *a = c->all;
  int64_t n[3] = {0, 0, 1};
  for (int i = 0; i < a->count && i < 3; i++) {
    if (!jinja_whole(&a->at[i])) return wn_jinja_fail(r, WN_ERR_FORMAT, "range: expected integers");
    n[i] = jinja_whole_of(&a->at[i]);
  }
  if (a->count == 1) n[1] = n[0], n[0] = 0;
  if (a->count < 1 || a->count > 3 || n[2] == 0)
    return wn_jinja_fail(r, WN_ERR_FORMAT, "range: expected 1 to 3 integers");
  struct parts p = {.run = r};
  for (int64_t i = n[0]; (n[2] > 0 ? i < n[1] : i > n[1]) && wn_jinja_step(r, 0);) {
    const struct jinja_value one = jinja_int(i);
    parts_add(&p, &one);
    if (__builtin_add_overflow(i, n[2], &i)) break;
  }
  return jinja_list(p.items, p.count);
}
/* namespace(...) and dict(...): the named arguments, and those of a dict before them. */
static struct jinja_frame *method_named(struct jinja_run *r, call_args c) {
  struct jinja_frame *f = wn_jinja_memory(r, 1, sizeof *f);
  for (int i = 0; f && i < c->all->count; i++) {
    const struct jinja_value *v = &c->all->at[i], *name = &c->all->names[i];
    if (name->kind == JINJA_TEXT) {
      wn_jinja_set(r, f, name, v);
      continue;
    }
    if (v->kind != JINJA_DICT) wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "expected named arguments or a dict");
    for (size_t k = 0; v->kind == JINJA_DICT && k < v->count && !r->failed; k++)
      wn_jinja_set(r, f, &v->as.pairs[k].key, &v->as.pairs[k].value);
  }
  return f;
}
METHOD(namespace) {
  struct jinja_frame *f = method_named(r, c);
  return f ? (struct jinja_value){.kind = JINJA_SPACE, .as.space = f} : (struct jinja_value){0};
}
METHOD(dict) {
  const struct jinja_frame *f = method_named(r, c);
  return f ? (struct jinja_value){.kind = JINJA_DICT, .as.pairs = f->pairs, .count = f->count}
           : (struct jinja_value){0};
}
METHOD(raise) {
  const struct jinja_value why = wn_jinja_string(r, &c->at[0]);
  return wn_jinja_fail(r, WN_ERR_ARGUMENT, "the template refuses this conversation: %.*s",
                       (int)(why.count > 200 ? 200 : why.count), why.kind == JINJA_TEXT ? why.as.text : "");
}
METHOD(strftime) {
  const time_t now = r->input->now ? (time_t)r->input->now : (time_t)(wn_wall_nanoseconds() / 1000000000);
  char format[128], text[256];
  struct tm day;
  if (!method_needs(r, c, 0) || c->at[0].count >= sizeof format || !localtime_r(&now, &day))
    return wn_jinja_fail(r, WN_ERR_FORMAT, "strftime_now: expected a format of fewer than 128 bytes");
  memcpy(format, c->at[0].as.text, c->at[0].count);
  format[c->at[0].count] = 0;
  const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  const size_t n = plain ? strftime_l(text, sizeof text, format, &day, plain) : 0;
  if (plain) freelocale(plain);
  char *copy = wn_jinja_memory(r, n, 1);
  if (copy) memcpy(copy, text, n);
  return jinja_text(copy ? copy : "", copy ? n : 0);
}
/* loop.cycle(...) */
METHOD(cycle) {
  if (c->all->count == 0) return wn_jinja_fail(r, WN_ERR_FORMAT, "cycle: no items");
  return c->all->at[c->self.as.loop->at % (size_t)c->all->count];
}

static const struct jinja_spec functions[] = {
    {"range", "*", method_range},
    {"namespace", "*", method_namespace},
    {"dict", "*", method_dict},
    {"raise_exception", "message ", method_raise},
    {"strftime_now", "format ", method_strftime},
};
static const struct jinja_spec loop_methods[] = {{"cycle", "*", method_cycle}};

const struct jinja_spec *wn_jinja_find_spec(const struct jinja_spec *list, size_t count,
                                            const struct jinja_value *name) {
  for (size_t i = 0; i < count; i++)
    if (jinja_is(name, list[i].name)) return &list[i];
  return NULL;
}
const struct jinja_spec *wn_jinja_text_filter(const struct jinja_value *name) {
  return JINJA_FIND(text_filters, name);
}
const struct jinja_spec *wn_jinja_function(const struct jinja_value *name) {
  return JINJA_FIND(functions, name);
}
const struct jinja_spec *wn_jinja_method(const struct jinja_value *self, const struct jinja_value *name) {
  return self->kind == JINJA_TEXT   ? JINJA_FIND(text_methods, name)
         : self->kind == JINJA_DICT ? JINJA_FIND(dict_methods, name)
         : self->kind == JINJA_LOOP ? JINJA_FIND(loop_methods, name)
                                    : NULL;
}

/* --- attributes --- */

static struct jinja_value method_of_loop(const struct jinja_loop *l, const struct jinja_value *name) {
  const int64_t at = (int64_t)l->at, n = (int64_t)l->count;
  const struct {
    const char *name;
    int64_t value;
  } numbers[] = {{"index0", at}, {"index", at + 1}, {"length", n}, {"revindex", n - at}, {"revindex0", n - at - 1},
                 {"depth", 1},   {"depth0", 0}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (jinja_is(name, numbers[i].name)) return jinja_int(numbers[i].value);
  if (jinja_is(name, "first")) return jinja_bool(at == 0);
  if (jinja_is(name, "last")) return jinja_bool(at == n - 1);
  if (jinja_is(name, "previtem") && at > 0) return l->items[at - 1];
  if (jinja_is(name, "nextitem") && at + 1 < n) return l->items[at + 1];
  return (struct jinja_value){.as.text = name->as.text, .count = name->count, .dotted = true};
}

struct jinja_value wn_jinja_attribute(struct jinja_run *r, const struct jinja_value *v,
                                      const struct jinja_value *name) {
  const struct jinja_value *found = NULL;
  if (v->kind == JINJA_UNDEFINED)
    return wn_jinja_fail(r, WN_ERR_FORMAT, "'%.*s' is undefined, and \"%.*s\" of it is read", (int)v->count,
                         v->count ? v->as.text : "", (int)name->count, name->as.text);
  const struct jinja_spec *spec = wn_jinja_method(v, name);
  if (spec) {
    struct jinja_method *m = wn_jinja_memory(r, 1, sizeof *m);
    if (!m) return (struct jinja_value){0};
    *m = (struct jinja_method){spec, *v};
    return (struct jinja_value){.kind = JINJA_METHOD, .as.method = m};
  }
  if (v->kind == JINJA_LOOP) return method_of_loop(v->as.loop, name);
  if (v->kind == JINJA_DICT) found = wn_jinja_find(r, v->as.pairs, v->count, name);
  if (v->kind == JINJA_SPACE) found = wn_jinja_find(r, v->as.space->pairs, v->as.space->count, name);
  return found ? *found : (struct jinja_value){.as.text = name->as.text, .count = name->count, .dotted = true};
}

struct jinja_value wn_jinja_element(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *key) {
  const struct jinja_value *found = v->kind == JINJA_DICT ? wn_jinja_find(r, v->as.pairs, v->count, key) : NULL;
  if (found) return *found;
  if (v->kind == JINJA_UNDEFINED || key->kind == JINJA_TEXT) {
    const struct jinja_value none = jinja_text("", 0);
    return wn_jinja_attribute(r, v, key->kind == JINJA_TEXT ? key : &none);
  }
  if (jinja_whole(key) && (jinja_listed(v) || v->kind == JINJA_TEXT)) {
    const int64_t n = v->kind == JINJA_TEXT ? (int64_t)wn_jinja_characters(r, v) : (int64_t)v->count;
    const int64_t asked = jinja_whole_of(key), at = asked < 0 ? asked + n : asked;
    if (at >= 0 && at < n && jinja_listed(v)) return v->as.items[at];
    size_t begin = 0;
    for (int64_t i = 0; at >= 0 && at < n && i <= at; i++) {
      const size_t more = wn_jinja_character(v->as.text + begin, v->count - begin);
      if (i == at) return wn_jinja_part(v, begin, begin + more);
      begin += more;
    }
  }
  return (struct jinja_value){.dotted = true};
}

struct jinja_value wn_jinja_path(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *dots,
                                 const struct jinja_value *otherwise) {
  struct jinja_value at = *v;
  if (dots->kind != JINJA_TEXT) return wn_jinja_element(r, v, dots);
  for (size_t begin = 0, end; begin <= dots->count && !r->failed; begin = end + 1) {
    const char *dot = begin < dots->count ? memchr(dots->as.text + begin, '.', dots->count - begin) : NULL;
    end = dot ? (size_t)(dot - dots->as.text) : dots->count;
    const struct jinja_value name = wn_jinja_part(dots, begin, end);
    at = wn_jinja_element(r, &at, &name);
    if (otherwise && at.kind == JINJA_UNDEFINED) at = *otherwise;
  }
  return at;
}
