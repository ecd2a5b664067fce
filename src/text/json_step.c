/* One step of the automaton: from a state and a byte to the states that follow. */
#include <string.h>

#include "text/json_machine.h"

enum { WHOLE_DIGITS = 18, FRACTION_DIGITS = 20, EXPONENT_DIGITS = 3, EXPONENT = 280, LINES = 2 };

enum number_part {
  NUMBER_MINUS,
  NUMBER_ZERO,
  NUMBER_WHOLE,
  NUMBER_POINT,
  NUMBER_FRACTION,
  NUMBER_E,
  NUMBER_SIGN,
  NUMBER_EXPONENT
};

/* --- what the schema allows where --- */

static const struct wn_shape *step_shape_of(const struct wn_json_machine *m, const struct wn_json_state *s) {
  return &m->schema->shapes[m->frames[s->top].shape];
}

/* May this value begin here? It must fit into the remaining depth. */
static bool step_fits(const struct wn_json_machine *m, uint32_t top, int64_t value) {
  return value >= 0 && m->schema->values[value].height + m->frames[top].depth <= WN_SCHEMA_DEPTH;
}

/* May a property named by one of the words from low to high come next? No property may come after the first required
 * one that is missing. */
static bool step_names(const struct wn_json_machine *m, uint32_t top, uint32_t low, uint32_t high) {
  const struct wn_json_frame *f = &m->frames[top];
  const struct wn_shape *shape = &m->schema->shapes[f->shape];
  const struct wn_part *parts = m->schema->parts + shape->first;
  uint32_t last = f->index;
  while (last < shape->count && !parts[last].required) last++;
  for (uint32_t i = low; i < high; i++) {
    const uint32_t part = m->schema->words[i].part;
    if (part >= f->index && part <= last && step_fits(m, top, parts[part].value)) return true;
  }
  return false;
}

/* Are all required properties there? */
static bool step_has_required(const struct wn_json_machine *m, uint32_t top) {
  const struct wn_json_frame *f = &m->frames[top];
  const struct wn_shape *shape = &m->schema->shapes[f->shape];
  for (uint32_t i = f->index; i < shape->count; i++)
    if (m->schema->parts[shape->first + i].required) return false;
  return true;
}

static bool step_free_names(const struct wn_json_machine *m, uint32_t top) {
  return step_has_required(m, top) && step_fits(m, top, m->schema->shapes[m->frames[top].shape].rest);
}

static bool step_any_name(const struct wn_json_machine *m, uint32_t top) {
  const struct wn_shape *shape = &m->schema->shapes[m->frames[top].shape];
  return step_free_names(m, top) || step_names(m, top, shape->words, shape->words + shape->texts);
}

/* The value for a list's element; -1: the list may have no such element. */
static int64_t step_item(const struct wn_json_machine *m, uint32_t top, uint32_t index) {
  const struct wn_shape *shape = &m->schema->shapes[m->frames[top].shape];
  if ((int64_t)index >= shape->max) return -1;
  return index < shape->count ? (int64_t)m->schema->parts[shape->first + index].value : shape->rest;
}

/* Narrows low and high to the words that continue with this byte. */
static void step_words(const struct wn_json_machine *m, struct wn_json_state *s, unsigned char byte) {
  const struct wn_schema *schema = m->schema;
  uint32_t low = s->low, high = s->high;
  for (uint32_t end = high; low < end;) { /* the first word that is not below */
    const uint32_t middle = low + (end - low) / 2;
    const struct wn_word *w = &schema->words[middle];
    if (w->bytes <= s->at || schema->text[w->at + s->at] < byte)
      low = middle + 1;
    else
      end = middle;
  }
  for (uint32_t begin = low; begin < high;) { /* the first word that is above */
    const uint32_t middle = begin + (high - begin) / 2;
    if (schema->text[schema->words[middle].at + s->at] <= byte)
      begin = middle + 1;
    else
      high = middle;
  }
  s->low = low;
  s->high = high;
  s->at++;
}

static bool step_word_ends(const struct wn_json_machine *m, const struct wn_json_state *s) {
  return s->low < s->high && m->schema->words[s->low].bytes == s->at;
}

/* --- after a value, and before one --- */

static void step_after(struct wn_json_machine *m, uint32_t top) {
  wn_json_add(m, &(struct wn_json_state){.top = top, .mode = WN_JSON_AFTER});
}

static void step_before(struct wn_json_machine *m, uint32_t top, uint32_t value) {
  wn_json_add(m, &(struct wn_json_state){.top = top, .mode = WN_JSON_VALUE, .what = value});
}

/* --- decimals: `number` has all digits, `at` counts them; `part` is 1 after a minus sign, plus twice the digits after
 * a point, the point itself counted --- */

static int64_t step_scaled(const struct wn_shape *shape, const struct wn_json_state *s) {
  int64_t out = s->number;
  for (int i = s->part / 2 ? s->part / 2 - 1 : 0; i < shape->scale; i++) out *= 10;
  return out;
}

/* Is there a multiple of the step from low to high? */
static bool step_decimal_has(int64_t step, int64_t low, int64_t high) {
  const int64_t over = low % step;
  return low <= high && (over == 0 || low + (over > 0 ? step - over : -over) <= high);
}

/* Could digits be appended so that the number lies within the bounds? One more digit before the point turns a range of
 * numbers into one ten times as far and as wide. */
static bool step_decimal_fits(const struct wn_shape *shape, const struct wn_json_state *s) {
  const bool minus = s->part & 1, point = s->part > 1;
  const int64_t most = minus ? -shape->min : shape->max, bound = minus ? -shape->max : shape->min;
  const int64_t least = minus && bound < 1 ? 1 : bound; /* there is no -0 */
  const uint32_t whole = shape->scale ? WN_SCHEMA_FRACTION - (uint32_t)shape->scale : WHOLE_DIGITS;
  int64_t unit = 1;
  for (int i = point ? s->part / 2 - 1 : 0; i < shape->scale; i++) unit *= 10;
  int64_t low = s->number * unit, high = low + unit - 1;
  for (uint32_t digits = s->at;; digits++) {
    if (step_decimal_has(shape->step, low > least ? low : least, high < most ? high : most)) return true;
    if (point || (s->number == 0 && s->at > 0) || digits >= whole) return false;
    low = low == 0 ? unit : 10 * low; /* after a minus sign: the first digit is 1 to 9 */
    high = 10 * high + 9;
  }
}

static bool step_decimal_ends(const struct wn_json_machine *m, const struct wn_json_state *s) {
  const struct wn_shape *shape = &m->schema->shapes[s->what];
  const int64_t scaled = step_scaled(shape, s), value = s->part & 1 ? -scaled : scaled;
  return s->at > 0 && s->part / 2 != 1 && !((s->part & 1) && value == 0) && value >= shape->min &&
         value <= shape->max && value % shape->step == 0;
}

static void step_decimal(struct wn_json_machine *m, const struct wn_json_state *from, unsigned char byte) {
  struct wn_json_state s = *from;
  const struct wn_shape *shape = &m->schema->shapes[s.what];
  const bool point = s.part > 1;
  const int whole = shape->scale ? WN_SCHEMA_FRACTION - shape->scale : WHOLE_DIGITS;
  if (byte == '-' && s.at == 0 && s.part == 0) {
    s.part = 1;
  } else if (byte == '.' && s.at > 0 && !point && shape->scale > 0) {
    s.part += 2;
  } else if (byte >= '0' && byte <= '9' &&
             (point ? s.part / 2 <= shape->scale : s.at == 0 || (s.number != 0 && (int)s.at < whole))) {
    s.number = 10 * s.number + (byte - '0');
    s.at++;
    if (point) s.part += 2;
  } else {
    return;
  }
  if (step_decimal_fits(shape, &s)) wn_json_add(m, &s);
}

static bool step_number_ends(const struct wn_json_state *s) {
  return s->part == NUMBER_ZERO || s->part == NUMBER_WHOLE || s->part == NUMBER_FRACTION || s->part == NUMBER_EXPONENT;
}

static bool step_number_digit(struct wn_json_state *s, int digit) {
  switch ((enum number_part)s->part) {
  case NUMBER_MINUS:
    s->part = digit ? NUMBER_WHOLE : NUMBER_ZERO;
    s->at = 1;
    return true;
  case NUMBER_WHOLE:
    return s->at++ < WHOLE_DIGITS;
  case NUMBER_POINT:
    s->part = NUMBER_FRACTION;
    s->at = 1;
    return true;
  case NUMBER_FRACTION:
    return s->at++ < FRACTION_DIGITS;
  case NUMBER_E:
  case NUMBER_SIGN:
    s->part = NUMBER_EXPONENT;
    s->at = 1;
    s->number = digit;
    return true;
  case NUMBER_EXPONENT:
    s->number = 10 * s->number + digit;
    return s->at++ < EXPONENT_DIGITS && s->number <= EXPONENT;
  case NUMBER_ZERO:
    break;
  }
  return false;
}

static void step_number(struct wn_json_machine *m, const struct wn_json_state *from, unsigned char byte) {
  struct wn_json_state s = *from;
  const bool whole = s.part == NUMBER_ZERO || s.part == NUMBER_WHOLE;
  if (byte >= '0' && byte <= '9') {
    if (!step_number_digit(&s, byte - '0')) return;
  } else if (byte == '.' && whole) {
    s.part = NUMBER_POINT;
  } else if ((byte | 0x20) == 'e' && (whole || s.part == NUMBER_FRACTION)) {
    s.part = NUMBER_E;
  } else if ((byte == '+' || byte == '-') && s.part == NUMBER_E) {
    s.part = NUMBER_SIGN;
  } else {
    return;
  }
  wn_json_add(m, &s);
}

static void step_word(struct wn_json_machine *m, const struct wn_json_state *from, unsigned char byte) {
  struct wn_json_state s = *from;
  step_words(m, &s, byte);
  if (s.low >= s.high) return;
  if (s.high - s.low == 1 && step_word_ends(m, &s))
    step_after(m, s.top);
  else
    wn_json_add(m, &s);
}

/* Begins a value of this shape, if the byte can begin one. */
static void step_begin_shape(struct wn_json_machine *m, uint32_t top, uint32_t at, unsigned char byte) {
  const struct wn_shape *shape = &m->schema->shapes[at];
  struct wn_json_state s = {.top = top, .what = at};
  if (shape->height + m->frames[top].depth > WN_SCHEMA_DEPTH) return;
  switch (shape->kind) {
  case WN_SHAPE_WORDS:
    s.mode = WN_JSON_WORD;
    s.what = 0;
    s.low = shape->words, s.high = shape->words + shape->texts;
    step_word(m, &s, byte);
    return;
  case WN_SHAPE_STRING:
    s.mode = shape->regular == 0 ? WN_JSON_STRING : WN_JSON_REGULAR;
    s.at = shape->regular == 0 ? 0 : WN_REGULAR_START;
    if (byte == '"') wn_json_add(m, &s);
    return;
  case WN_SHAPE_NUMBER:
    s.mode = WN_JSON_NUMBER;
    s.what = 0;
    if (byte == '-')
      wn_json_add(m, &s); /* NUMBER_MINUS */
    else if (byte >= '0' && byte <= '9')
      step_number(m, &s, byte);
    return;
  case WN_SHAPE_DECIMAL:
    s.mode = WN_JSON_DECIMAL;
    step_decimal(m, &s, byte);
    return;
  case WN_SHAPE_OBJECT:
  case WN_SHAPE_ARRAY:
    break;
  }
  const bool object = shape->kind == WN_SHAPE_OBJECT;
  if (byte != (object ? '{' : '[')) return;
  s.mode = object ? WN_JSON_FIRST_NAME : WN_JSON_FIRST_ITEM;
  s.what = 0;
  s.top = wn_json_push(m, top, at, object ? 0 : 1);
  wn_json_add(m, &s);
}

static void step_begin_value(struct wn_json_machine *m, uint32_t top, uint32_t value, unsigned char byte) {
  const struct wn_value *v = &m->schema->values[value];
  for (uint32_t i = 0; i < v->count; i++) step_begin_shape(m, top, m->schema->alternatives[v->first + i], byte);
}

/* --- names --- */

static void step_begin_name(struct wn_json_machine *m, uint32_t top) {
  const struct wn_shape *shape = &m->schema->shapes[m->frames[top].shape];
  wn_json_add(m, &(struct wn_json_state){.top = top,
                                         .mode = WN_JSON_NAME,
                                         .part = step_free_names(m, top) ? WN_STRING_PLAIN : WN_STRING_NONE,
                                         .low = shape->words,
                                         .high = shape->words + shape->texts});
}

bool wn_json_is_free_name(const struct wn_json_machine *m, const struct wn_json_state *s, bool *simple) {
  *simple = step_shape_of(m, s)->texts > 0;
  return s->mode == WN_JSON_NAME && s->low >= s->high;
}

/* Ends a name: the value of this property, or of any other property, follows. */
static void step_end_name(struct wn_json_machine *m, const struct wn_json_state *s, uint32_t part, uint32_t value) {
  const struct wn_json_frame f = m->frames[s->top];
  wn_json_add(
      m, &(struct wn_json_state){.top = wn_json_push(m, f.up, f.shape, part), .mode = WN_JSON_COLON, .what = value});
}

void wn_json_end_string(struct wn_json_machine *m, const struct wn_json_state *from) {
  const struct wn_json_state s = *from;
  const struct wn_shape *shape = step_shape_of(m, &s);
  if (s.mode == WN_JSON_STRING)
    step_after(m, s.top);
  else
    step_end_name(m, &s, shape->count, (uint32_t)shape->rest);
}

/* A name may still be the schema's while words from low to high continue; `part` tracks whether it may be another
 * name. */
static void step_name(struct wn_json_machine *m, const struct wn_json_state *from, unsigned char byte) {
  struct wn_json_state s = *from;
  const struct wn_shape *shape = step_shape_of(m, &s);
  step_words(m, &s, byte);
  if (step_word_ends(m, &s)) { /* the byte was the closing quote, and no other word continues here */
    const uint32_t part = m->schema->words[s.low].part;
    if (step_names(m, s.top, s.low, s.low + 1))
      step_end_name(m, &s, part + 1, m->schema->parts[shape->first + part].value);
    return;
  }
  if (byte == '"' && from->part == WN_STRING_PLAIN) {
    wn_json_end_string(m, from);
    return;
  }
  const bool plain = shape->texts == 0 || (byte != '\\' && byte != 0x7F); /* so that no name has two spellings */
  s.part = plain ? wn_json_string_step((enum wn_json_string)from->part, byte) : WN_STRING_NONE;
  if (s.low >= s.high) s.low = s.high = s.at = 0;
  if (s.part != WN_STRING_NONE || (s.low < s.high && step_names(m, s.top, s.low, s.high))) wn_json_add(m, &s);
}

static void step_string(struct wn_json_machine *m, const struct wn_json_state *from, unsigned char byte) {
  struct wn_json_state s = *from;
  const struct wn_shape *shape = &m->schema->shapes[s.what];
  const bool begins = s.part == WN_STRING_PLAIN;
  if (begins && byte == '"') {
    if ((int64_t)s.at >= shape->min) step_after(m, s.top);
    return;
  }
  if (begins && (int64_t)s.at >= shape->max) return;
  s.part = (uint8_t)wn_json_string_step((enum wn_json_string)s.part, byte);
  /* Beyond the last limit characters are not counted, so that states stay equal. */
  if (begins && (shape->max != INT64_MAX || (int64_t)s.at < shape->min)) s.at++;
  if (s.part != WN_STRING_NONE) wn_json_add(m, &s);
}

static const char escaped[] = "\"\\bfnrt", escapes[] = "\"\\\b\f\n\r\t";

/* Bytes of a character that are missing here. */
static int step_missing(enum wn_json_string part) {
  return part == WN_STRING_TAIL1                                                   ? 1
         : part == WN_STRING_TAIL2 || part == WN_STRING_E0 || part == WN_STRING_ED ? 2
         : part == WN_STRING_TAIL3 || part == WN_STRING_F0 || part == WN_STRING_F4 ? 3
                                                                                   : 0;
}

/* Could a character that begins like this go on in the automaton? */
static bool step_regular_goes(const struct wn_regular *r, const struct wn_json_state *s) {
  const enum wn_json_string part = (enum wn_json_string)s->part;
  bool goes = false;
  for (const char *c = escapes; part == WN_STRING_ESCAPE && *c; c++)
    goes = goes || wn_regular_next(r, s->at, (uint32_t)*c) != WN_REGULAR_DEAD;
  if (part == WN_STRING_ESCAPE) return goes;
  const int bits = 6 * step_missing(part);
  const uint32_t low = (uint32_t)s->number << bits, high = low | ((1u << bits) - 1);
  return wn_regular_any(r, s->at, part == WN_STRING_E0 ? 0x800 : part == WN_STRING_F0 ? 0x10000 : low, high);
}

/* A string that matches regular expressions: each character in its shortest spelling. */
static void step_regular(struct wn_json_machine *m, const struct wn_json_state *from, unsigned char byte) {
  const struct wn_regular *r = m->schema->regulars[m->schema->shapes[from->what].regular - 1];
  const enum wn_json_string was = (enum wn_json_string)from->part;
  struct wn_json_state s = *from;
  if (was == WN_STRING_PLAIN && byte == '"') {
    if (r->ends[s.at]) step_after(m, s.top);
    return;
  }
  if (was == WN_STRING_ESCAPE) {
    const char *c = byte ? strchr(escaped, byte) : NULL;
    if (!c) return;
    s.number = (unsigned char)escapes[c - escaped];
    s.part = WN_STRING_PLAIN;
  } else {
    s.part = (uint8_t)wn_json_string_step(was, byte);
    if (s.part == WN_STRING_NONE) return;
    s.number = was != WN_STRING_PLAIN ? s.number << 6 | (byte & 0x3F)
               : byte < 0x80          ? byte
                                      : byte & (byte < 0xE0   ? 0x1F
                                                : byte < 0xF0 ? 0xF
                                                              : 7);
  }
  if (s.part == WN_STRING_PLAIN) {
    s.at = wn_regular_next(r, s.at, (uint32_t)s.number);
    s.number = 0;
    if (s.at != WN_REGULAR_DEAD) wn_json_add(m, &s);
  } else if (step_regular_goes(r, &s)) {
    wn_json_add(m, &s);
  }
}

/* --- brackets and commas --- */

/* False: this white space is not allowed here. */
static bool step_space(struct wn_json_machine *m, const struct wn_json_state *from, unsigned char byte) {
  struct wn_json_state s = *from;
  if (byte == '\n') {
    if (s.blanks > 0 || s.lines == LINES) return false;
    s.lines++;
  } else if (byte == ' ' || byte == '\t') {
    if (s.blanks == (s.lines ? WN_JSON_INDENT : 1)) return false;
    s.blanks++;
  } else {
    return false;
  }
  wn_json_add(m, &s);
  return true;
}

static void step_first_item(struct wn_json_machine *m, const struct wn_json_state *s, unsigned char byte) {
  const struct wn_shape *shape = step_shape_of(m, s);
  const uint32_t top = s->top;
  const int64_t item = step_item(m, top, 0);
  if (byte == ']' && shape->min <= 0)
    step_after(m, m->frames[top].up);
  else if (step_fits(m, top, item))
    step_begin_value(m, top, (uint32_t)item, byte);
}

static void step_first_name(struct wn_json_machine *m, const struct wn_json_state *s, unsigned char byte) {
  const uint32_t top = s->top;
  if (byte == '}' && step_has_required(m, top))
    step_after(m, m->frames[top].up);
  else if (byte == '"' && step_any_name(m, top))
    step_begin_name(m, top);
}

static void step_comma(struct wn_json_machine *m, uint32_t top) {
  const struct wn_json_frame f = m->frames[top];
  const struct wn_shape *shape = &m->schema->shapes[f.shape];
  if (shape->kind == WN_SHAPE_OBJECT) {
    if (step_any_name(m, top)) wn_json_add(m, &(struct wn_json_state){.top = top, .mode = WN_JSON_NEXT_NAME});
    return;
  }
  const int64_t item = step_item(m, top, f.index);
  /* Beyond the last limit elements are not counted, so that frames stay equal. */
  const bool counts = shape->max != INT64_MAX || f.index < shape->count || (int64_t)f.index < shape->min;
  if (step_fits(m, top, item))
    step_before(m, counts ? wn_json_push(m, f.up, f.shape, f.index + 1) : top, (uint32_t)item);
}

static void step_after_value(struct wn_json_machine *m, const struct wn_json_state *s, unsigned char byte) {
  const struct wn_shape *shape = step_shape_of(m, s);
  const uint32_t top = s->top;
  if (!top || step_space(m, s, byte)) return;
  if (byte == ',')
    step_comma(m, top);
  else if (shape->kind == WN_SHAPE_OBJECT ? byte == '}' && step_has_required(m, top)
                                          : byte == ']' && (int64_t)m->frames[top].index >= shape->min)
    step_after(m, m->frames[top].up);
}

static bool step_ends(const struct wn_json_machine *m, const struct wn_json_state *s) {
  return (s->mode == WN_JSON_NUMBER && step_number_ends(s)) ||
         (s->mode == WN_JSON_DECIMAL && step_decimal_ends(m, s)) || (s->mode == WN_JSON_WORD && step_word_ends(m, s));
}

bool wn_json_is_complete(const struct wn_json_machine *m, const struct wn_json_state *s) {
  return s->top == 0 && (s->mode == WN_JSON_AFTER || step_ends(m, s));
}

/* Appends the states that follow one state. */
static void step_state(struct wn_json_machine *m, const struct wn_json_state *s, unsigned char byte) {
  if (step_ends(m, s)) /* only the byte after a number shows that it has ended */
    step_after_value(m, &(struct wn_json_state){.top = s->top, .mode = WN_JSON_AFTER}, byte);
  switch ((enum wn_json_mode)s->mode) {
  case WN_JSON_VALUE:
    if (!step_space(m, s, byte)) step_begin_value(m, s->top, s->what, byte);
    return;
  case WN_JSON_FIRST_ITEM:
    if (!step_space(m, s, byte)) step_first_item(m, s, byte);
    return;
  case WN_JSON_FIRST_NAME:
    if (!step_space(m, s, byte)) step_first_name(m, s, byte);
    return;
  case WN_JSON_NEXT_NAME:
    if (!step_space(m, s, byte) && byte == '"') step_begin_name(m, s->top);
    return;
  case WN_JSON_NAME:
    step_name(m, s, byte);
    return;
  case WN_JSON_COLON:
    if (!step_space(m, s, byte) && byte == ':') step_before(m, s->top, s->what);
    return;
  case WN_JSON_STRING:
    step_string(m, s, byte);
    return;
  case WN_JSON_WORD:
    step_word(m, s, byte);
    return;
  case WN_JSON_NUMBER:
    step_number(m, s, byte);
    return;
  case WN_JSON_DECIMAL:
    step_decimal(m, s, byte);
    return;
  case WN_JSON_REGULAR:
    step_regular(m, s, byte);
    return;
  case WN_JSON_AFTER:
    step_after_value(m, s, byte);
    return;
  }
}

void wn_json_step(struct wn_json_machine *m, uint32_t first, uint32_t count, unsigned char byte) {
  const uint32_t begin = m->state_count;
  for (uint32_t i = 0; i < count && !m->failed; i++) {
    const struct wn_json_state s = m->states[first + i]; /* copied: the array may move */
    step_state(m, &s, byte);
  }
  if (m->state_count - begin > 1) wn_json_unique(m, begin);
}
