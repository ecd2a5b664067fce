/* Calls of functions in answers. Marks of the model's form begin a call anywhere; without a mark the whole answer must
 * be calls, since marks that are control tokens leave no text. What may become a call is held back; an automaton over
 * its bytes says as soon as it cannot. A call that is broken stays text. Each byte is looked at once, those of broken
 * calls again. */
#include "serve/calls.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/normalize.h"
#include "text/vocab.h"

/* The first row whose text the template has. Rows without `begun` are forms that are not JSON: their calls stay text.
 */
static const struct wn_call_form forms[] = {
    {.found = "<function="},
    {.found = "<arg_key>"},
    {.found = "[ARGS]"},
    {.found = "<tool_call>",
     .open = "<tool_call>",
     .close = "</tool_call>",
     .begun = "<tool_call>\n",
     .arguments = "arguments"},
    {.found = "[TOOL_CALLS]", .open = "[TOOL_CALLS]", .begun = "[TOOL_CALLS]", .arguments = "arguments", .list = true},
    {.found = "<|python_tag|>", .open = "<|python_tag|>", .begun = "", .arguments = "parameters"},
    {.found = "\"parameters\":", .open = "<|python_tag|>", .begun = "", .arguments = "parameters"},
    {.begun = "", .arguments = "arguments"},
};

const struct wn_call_form *wn_call_form_of(const char *template) {
  const struct wn_call_form *f = forms;
  while (f->found && !(template && strstr(template, f->found))) f++;
  return f;
}

/* --- a JSON value, byte by byte: an object that may be a call, or a list of them --- */

enum scan_state {
  SCAN_BEGIN, /* before the whole value */
  SCAN_VALUE,
  SCAN_FIRST,      /* after "[" */
  SCAN_FIRST_NAME, /* after "{" */
  SCAN_NEXT_NAME,  /* after a comma in an object */
  SCAN_NAME,
  SCAN_COLON,
  SCAN_STRING,
  SCAN_ESCAPE,
  SCAN_WORD,
  SCAN_NUMBER,
  SCAN_AFTER,
  SCAN_END,
  SCAN_BROKEN
};
enum { SCAN_DEPTH = 60, SCAN_KEY = 16 };

struct scan {
  enum scan_state state, inside; /* inside: what an escape belongs to */
  int depth, call;               /* call: the depth of calls */
  uint64_t lists;                /* bit d: depth d is a list */
  const char *word;
  char key[SCAN_KEY];
  size_t key_bytes;
};

/* Can what is read of a call's key become one that calls have? `whole`: it has ended. */
static bool scan_key_fits(const struct scan *s, bool whole) {
  static const char *const keys[] = {"name", "arguments", "parameters", "id", "type", "function"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!strncmp(keys[i], s->key, s->key_bytes) && (!whole || !keys[i][s->key_bytes])) return true;
  return false;
}

static void scan_open(struct scan *s, bool list) {
  if (s->depth == 0) s->call = list ? 2 : 1;
  s->state = list ? SCAN_FIRST : SCAN_FIRST_NAME;
  if (++s->depth > SCAN_DEPTH || (list && s->depth == s->call)) s->state = SCAN_BROKEN;
  s->lists = (s->lists & ~(UINT64_C(1) << s->depth)) | (uint64_t)list << s->depth;
}

static void scan_close(struct scan *s, bool list) {
  const bool is = s->lists >> s->depth & 1;
  s->state = is != list ? SCAN_BROKEN : --s->depth ? SCAN_AFTER : SCAN_END;
}

static void scan_value(struct scan *s, char c) {
  const char *const words[] = {"true", "false", "null"};
  if (c == '{' || c == '[') {
    scan_open(s, c == '[');
    return;
  }
  s->state = SCAN_BROKEN;
  if (s->depth < s->call || s->depth == 0) return; /* no call */
  if (c == '"') s->state = s->inside = SCAN_STRING;
  if (c == '-' || (c >= '0' && c <= '9')) s->state = SCAN_NUMBER;
  for (int i = 0; i < 3; i++)
    if (c == *words[i]) s->state = SCAN_WORD, s->word = words[i] + 1;
}

static void scan_string(struct scan *s, char c) {
  const bool key = s->state == SCAN_NAME && s->depth == s->call;
  if (c == '"')
    s->state = s->state == SCAN_STRING ? SCAN_AFTER : !key || scan_key_fits(s, true) ? SCAN_COLON : SCAN_BROKEN;
  else if ((unsigned char)c < ' ')
    s->state = SCAN_BROKEN;
  else if (c == '\\' && !key)
    s->state = SCAN_ESCAPE;
  if (!key || s->state != SCAN_NAME) return;
  if (s->key_bytes < SCAN_KEY) s->key[s->key_bytes++] = c;
  if (!scan_key_fits(s, false)) s->state = SCAN_BROKEN;
}

static void scan_after(struct scan *s, char c) {
  if (c == ']' || c == '}')
    scan_close(s, c == ']');
  else
    s->state = c != ',' ? SCAN_BROKEN : s->lists >> s->depth & 1 ? SCAN_VALUE : SCAN_NEXT_NAME;
}

/* The digits of numbers and escapes are checked by the parser in the end. */
static void scan_step(struct scan *s, char c) {
  if (s->state == SCAN_NAME || s->state == SCAN_STRING) {
    scan_string(s, c);
  } else if (s->state == SCAN_ESCAPE) {
    s->state = c && strchr("\"\\/bfnrtu", c) ? s->inside : SCAN_BROKEN;
  } else if (s->state == SCAN_WORD) {
    s->state = *s->word++ != c ? SCAN_BROKEN : *s->word ? SCAN_WORD : SCAN_AFTER;
  } else if (s->state != SCAN_NUMBER || !c || !strchr("0123456789.eE+-", c)) {
    if (s->state == SCAN_NUMBER) s->state = SCAN_AFTER;
    if (wn_json_is_space(c)) return;
    if ((s->state == SCAN_FIRST_NAME || s->state == SCAN_NEXT_NAME) && c == '"') {
      s->state = s->inside = SCAN_NAME;
      s->key_bytes = 0;
    } else if ((s->state == SCAN_FIRST_NAME && c == '}') || (s->state == SCAN_FIRST && c == ']')) {
      scan_close(s, c == ']');
    } else if (s->state == SCAN_BEGIN || s->state == SCAN_VALUE || s->state == SCAN_FIRST) {
      scan_value(s, c);
    } else if (s->state == SCAN_COLON) {
      s->state = c == ':' ? SCAN_VALUE : SCAN_BROKEN;
    } else if (s->state == SCAN_AFTER) {
      scan_after(s, c);
    } else {
      s->state = SCAN_BROKEN;
    }
  }
}

/* --- calls --- */

struct wn_calls {
  const struct wn_call_form *form;
  const json_t *tools;
  uint64_t seed;
  struct wn_bytes held;
  size_t from, look; /* bytes of `held` that have been handed out; up to where they are text */
  bool begun;        /* the answer has text or a call already */
  bool forced;       /* `held` begins with a mark that is the prompt's */
  bool reading, marked, failed;
  size_t start, at;   /* where a call being read begins, with its mark; up to where it is read */
  size_t value;       /* where its JSON begins */
  struct scan scan;   /* of this JSON */
  json_t *calls;      /* read, and not handed out yet unless below `told` */
  size_t told, count; /* count: calls of the answer */
  bool ready;         /* `calls` may be handed out */
};

void wn_calls_destroy(struct wn_calls *c) {
  if (!c) return;
  wn_bytes_clear(&c->held);
  json_decref(c->calls);
  wn_free(c);
}

struct wn_calls *wn_calls_create(const struct wn_call_form *form, const json_t *tools, uint64_t seed, bool forced,
                                 bool text_begun) {
  struct wn_calls *c;
  if (WN_ALLOC(NULL, "calls", 1, &c) != WN_OK) return NULL;
  *c = (struct wn_calls){.form = form, .tools = tools, .seed = seed, .begun = text_begun, .calls = json_array()};
  if (forced && *form->begun) c->forced = wn_calls_push(c, form->open, strlen(form->open));
  if (c->calls && (!forced || !*form->begun || c->forced)) return c;
  wn_calls_destroy(c);
  return NULL;
}

bool wn_calls_failed(const struct wn_calls *c) {
  return c->failed;
}

bool wn_calls_push(struct wn_calls *c, const char *text, size_t bytes) {
  const size_t from = c->from;
  if (from) { /* what was handed out is no longer needed */
    memmove(c->held.data, c->held.data + from, c->held.count -= from);
    c->from = 0, c->look -= from;
    if (c->reading) c->start -= from, c->at -= from, c->value -= from;
  }
  return wn_bytes_add(NULL, &c->held, text, bytes) == WN_OK;
}

static bool calls_are_known(const json_t *tools, const char *name) {
  size_t i;
  const json_t *tool;
  json_array_foreach(tools, i, tool) {
    const char *one = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
    if (one && !strcmp(one, name)) return true;
  }
  return false;
}

/* Nine letters and digits, which templates accept that check ids. */
static void calls_id(const struct wn_calls *c, const char *name, const char *arguments, char out[10]) {
  static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const uint64_t parts[] = {c->seed, c->count + json_array_size(c->calls), wn_hash_bytes(name, strlen(name)),
                            wn_hash_bytes(arguments, strlen(arguments))};
  uint64_t h = wn_hash_bytes((const char *)parts, sizeof parts);
  for (int i = 0; i < 9; i++, h /= 62) out[i] = digits[h % 62];
  out[9] = 0;
}

/* Adds a call: {"name", "arguments" or "parameters"}, which may stand in {"function"}. False: it is none. */
static bool calls_add(struct wn_calls *c, const json_t *value) {
  const json_t *inside = json_object_get(value, "function");
  if (json_is_object(inside)) value = inside;
  const char *name = json_string_value(json_object_get(value, "name"));
  json_t *arguments = json_object_get(value, "arguments");
  if (!arguments) arguments = json_object_get(value, "parameters");
  json_t *read = json_is_string(arguments) ? json_loads(json_string_value(arguments), JSON_REJECT_DUPLICATES, NULL)
                                           : json_incref(arguments);
  const bool good = name && json_is_object(read) && (c->marked || calls_are_known(c->tools, name));
  char id[10], *text = good ? json_dumps(read, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
  json_decref(read);
  if (text) {
    calls_id(c, name, text, id);
    c->failed |= json_array_append_new(c->calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function",
                                                           "function", "name", name, "arguments", text)) != 0;
  }
  c->failed |= good && !text;
  free(text);
  return good;
}

/* Adds the call or the list of calls that has just been read. */
static bool calls_add_value(struct wn_calls *c) {
  json_t *value = json_loadb(c->held.data + c->value, c->at - c->value, JSON_REJECT_DUPLICATES, NULL);
  bool good = value && (!json_is_array(value) || json_array_size(value) > 0);
  for (size_t i = 0; good && i < (json_is_array(value) ? json_array_size(value) : 1); i++)
    good = calls_add(c, json_is_array(value) ? json_array_get(value, i) : value);
  json_decref(value);
  return good;
}

enum calls_read { CALLS_WAIT, CALLS_BROKEN, CALLS_READ };

/* Does the text at `at` begin with this mark? CALLS_WAIT: it may, when more comes. */
static enum calls_read calls_mark(const struct wn_calls *c, size_t at, const char *mark, bool end) {
  const size_t n = mark ? strlen(mark) : 0, left = c->held.count - at;
  if (n == 0 || memcmp(c->held.data + at, mark, n < left ? n : left) != 0) return CALLS_BROKEN;
  return n <= left ? CALLS_READ : end ? CALLS_BROKEN : CALLS_WAIT;
}

/* Reads on in what may be a call: after a mark one value and the mark that ends it; without a mark all to the end. */
static enum calls_read calls_read(struct wn_calls *c, bool end) {
  const char *s = c->held.data;
  for (;;) {
    if (c->scan.state == SCAN_BEGIN) {
      const bool done = json_array_size(c->calls) > 0;
      if (done && c->marked && !c->form->close) return CALLS_READ;
      while (c->at < c->held.count && (wn_json_is_space(s[c->at]) || (done && !c->marked && s[c->at] == ';'))) c->at++;
      if (c->at == c->held.count) return !end ? CALLS_WAIT : done ? CALLS_READ : CALLS_BROKEN;
      if (done && c->marked) {
        const enum calls_read closed = calls_mark(c, c->at, c->form->close, end);
        if (closed == CALLS_READ) c->at += strlen(c->form->close);
        return closed;
      }
      c->value = c->at;
    }
    while (c->at < c->held.count && c->scan.state < SCAN_END) scan_step(&c->scan, s[c->at++]);
    if (c->scan.state < SCAN_END) return end ? CALLS_BROKEN : CALLS_WAIT;
    if (c->scan.state == SCAN_BROKEN || !calls_add_value(c)) return CALLS_BROKEN;
    c->scan = (struct scan){.state = SCAN_BEGIN};
  }
}

/* Looks further in text for the beginning of a call. False: more must come first. */
static bool calls_look(struct wn_calls *c, bool end) {
  const char *s = c->held.data, mark = c->form->open ? *c->form->open : 0;
  size_t at = c->look;
  while (at < c->held.count && wn_json_is_space(s[at])) at++;
  if (at == c->held.count) return false;
  const enum calls_read opened = calls_mark(c, at, c->form->open, end);
  if (opened == CALLS_WAIT) return false;
  c->marked = opened == CALLS_READ;
  c->reading = c->marked || (!c->begun && (s[at] == '{' || s[at] == '['));
  c->begun = true;
  if (c->reading) {
    c->start = at;
    c->at = at + (c->marked ? strlen(c->form->open) : 0);
    c->scan = (struct scan){.state = SCAN_BEGIN};
    return true;
  }
  for (at++; at < c->held.count && !wn_json_is_space(s[at]) && s[at] != mark;) at++;
  c->look = at;
  return true;
}

/* The call being read has ended, whole or broken. */
static void calls_settle(struct wn_calls *c, bool whole) {
  c->reading = false;
  c->ready = whole;
  if (whole) {
    c->from = c->look = c->at; /* without the white space before it */
  } else {
    json_array_clear(c->calls);
    c->look = c->start + (c->marked ? strlen(c->form->open) : 1);
    if (c->forced) c->from = c->look;
  }
  c->forced = false;
}

bool wn_calls_next(struct wn_calls *c, bool end, struct wn_call_event *out) {
  for (;;) {
    if (c->ready && c->told < json_array_size(c->calls)) {
      *out = (struct wn_call_event){.call = json_array_get(c->calls, c->told++), .index = c->count++};
      return true;
    }
    if (c->ready) json_array_clear(c->calls), c->told = 0, c->ready = false;
    if (c->reading) {
      if (c->look > c->from) break; /* the text before it */
      const enum calls_read read = calls_read(c, end);
      if (read == CALLS_WAIT) return false;
      calls_settle(c, read == CALLS_READ);
    } else if (!calls_look(c, end)) {
      if (end && c->count == 0) c->look = c->held.count;
      break;
    }
  }
  if (c->look == c->from) return false;
  *out = (struct wn_call_event){.text = c->held.data + c->from, .bytes = c->look - c->from};
  c->from = c->look;
  return true;
}
