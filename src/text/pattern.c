/* Regular expressions of tokenizers; see pattern.h. PCRE2 matches, compiled to machine code where it can. A match may
 * take MATCH_STEPS plus a few steps per byte of the text: a hostile pattern fails instead of running on. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

#define MAX_PATTERN_BYTES 16384
#define MAX_NESTING 64
#define MATCH_STEPS 500000u
#define MATCH_HEAP_KIB (64u << 10)
#define JIT_STACK_BYTES ((size_t)1 << 20)

struct wn_pattern {
  char *text;
  pcre2_code *code;
};

struct wn_matcher {
  const struct wn_pattern *pattern;
  pcre2_match_data *data;
  pcre2_match_context *limits;
  pcre2_jit_stack *stack;
};

/* White_Space, for use inside a class. */
static const char white[] =
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
/* Characters with the property Alphabetic, which includes some symbols, and Latin-1's numbers. */
static const char word[] = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
                           "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";

static wn_status refuse(wn_context *ctx, const char *name, const char *text, const char *what) {
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: the regular expression \"%.200s\" has %s", name, text, what);
}

/* Is \p{sc:name} a script? PCRE2 before 10.40 does not know "sc:"; there \p{Han} already has the right meaning. */
static bool is_script(const char *name, size_t bytes) {
  char text[80];
  int error;
  PCRE2_SIZE at;
  if (bytes > 60) return false;
  const int n = snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)bytes, name);
  pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)n, PCRE2_UTF, &error, &at, NULL);
  pcre2_code_free(code);
  return code != NULL;
}

/* Translates \p{...} at the start of text; returns its bytes, 0 if there is none. PCRE2 reads a script's name as its
 * Script_Extensions. */
static size_t translate_property(const char *text, struct wn_text *out) {
  const char *end = text[2] == '{' ? strchr(text, '}') : NULL;
  if (!end) return 0;
  const bool negated = text[3] == '^';
  const char *name = text + 3 + negated;
  const size_t bytes = (size_t)(end - name);
  wn_text_add(out, "\\%c{%s%s%.*s}", text[1], negated ? "^" : "", is_script(name, bytes) ? "sc:" : "", (int)bytes,
              name);
  return (size_t)(end + 1 - text);
}

/* Translates Oniguruma's syntax to PCRE2's. */
static wn_status translate(wn_context *ctx, const char *name, const char *text, struct wn_text *out) {
  bool in_class = false;
  size_t opened = 0; /* position of the open class's first member */
  for (size_t i = 0; text[i]; i++) {
    char c = text[i];
    if (c == '\\') {
      char next = text[++i];
      if (!next)
        return wn_fail(ctx, WN_ERR_FORMAT, "%s: the regular expression \"%.200s\" ends in a backslash", name, text);
      if (next == 'h' || next == 'H')
        return refuse(ctx, name, text, "\\h, which means different things in different libraries");
      if (next == 'S' && in_class) return refuse(ctx, name, text, "\\S inside a class");
      if (next == 'W' && in_class) return refuse(ctx, name, text, "\\W inside a class");
      const size_t property = next == 'p' || next == 'P' ? translate_property(text + i - 1, out) : 0;
      if (property)
        i += property - 2;
      else if (!in_class && next == 'b')
        wn_text_add(out, "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))", word, word, word, word);
      else if (!in_class && next == 'B')
        wn_text_add(out, "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))", word, word, word, word);
      else if (next == 's')
        wn_text_add(out, in_class ? "%s" : "[%s]", white);
      else if (next == 'S')
        wn_text_add(out, "[^%s]", white);
      else if (next == 'w')
        wn_text_add(out, in_class ? "%s" : "[%s]", word);
      else if (next == 'W')
        wn_text_add(out, "[^%s]", word);
      else
        wn_text_add(out, "\\%c", next);
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      opened = i + 1 + (text[i + 1] == '^');
    } else if (in_class && c == ']' && i != opened) {
      in_class = false;
    } else if (in_class && c == '[' && text[i + 1] != ':') {
      return refuse(ctx, name, text, "a class inside a class");
    } else if (in_class && c == '[') { /* [:alpha:] and other named classes */
      const char *end = strstr(text + i + 2, ":]");
      if (!end) return refuse(ctx, name, text, "a class inside a class");
      if (strncmp(text + i, "[:digit:]", 9) != 0 && strncmp(text + i, "[:^digit:]", 10) != 0)
        return refuse(ctx, name, text, "a named class other than [:digit:], which libraries read differently");
      for (const char *p = text + i; p < end + 2; p++) wn_text_add(out, "%c", *p);
      i = (size_t)(end + 1 - text);
      continue;
    } else if (in_class && c == '&' && text[i + 1] == '&') {
      return refuse(ctx, name, text, "an intersection of classes");
    }
    wn_text_add(out, "%c", c);
  }
  return out->failed ? wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a regular expression") : WN_OK;
}

wn_status wn_pattern_create(wn_context *ctx, const char *name, const char *text, struct wn_pattern **out) {
  *out = NULL;
  if (!text[0] || strlen(text) > MAX_PATTERN_BYTES)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: a regular expression of %zu bytes, expected 1 to %d", name, strlen(text),
                   MAX_PATTERN_BYTES);
  struct wn_text translated = {0};
  pcre2_compile_context *limits = NULL;
  int error = 0;
  PCRE2_SIZE at = 0;
  struct wn_pattern *pattern;
  WN_TRY(WN_ALLOC(ctx, "regular expression", 1, &pattern));
  wn_status status = WN_ERR_MEMORY;
  pattern->text = wn_strdup(ctx, text);
  if (!pattern->text) goto out;
  WN_TRY_GOTO(translate(ctx, name, text, &translated), out);
  limits = pcre2_compile_context_create(NULL);
  if (!limits) {
    status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a regular expression");
    goto out;
  }
  pcre2_set_parens_nest_limit(limits, MAX_NESTING);
  pattern->code = pcre2_compile(
      (PCRE2_SPTR)translated.data, translated.bytes,
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY, &error, &at, limits);
  if (!pattern->code) {
    PCRE2_UCHAR why[128];
    pcre2_get_error_message(error, why, sizeof why);
    status = wn_fail(ctx, WN_ERR_FORMAT, "%s: the regular expression \"%.200s\" cannot be compiled: %s", name, text,
                     (const char *)why);
    goto out;
  }
  pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* on failure the interpreter is used */
  status = WN_OK;
out:
  wn_free(translated.data);
  pcre2_compile_context_free(limits);
  if (status != WN_OK) {
    wn_pattern_destroy(pattern);
    return status;
  }
  *out = pattern;
  return WN_OK;
}

void wn_pattern_destroy(struct wn_pattern *pattern) {
  if (!pattern) return;
  pcre2_code_free(pattern->code);
  wn_free(pattern->text);
  wn_free(pattern);
}
const char *wn_pattern_text(const struct wn_pattern *pattern) {
  return pattern->text;
}

wn_status wn_matcher_create(const struct wn_pattern *pattern, struct wn_matcher **out) {
  *out = NULL;
  struct wn_matcher *m;
  WN_TRY(WN_ALLOC(NULL, "regular expression", 1, &m));
  m->pattern = pattern;
  m->data = pcre2_match_data_create(1, NULL);
  m->limits = pcre2_match_context_create(NULL);
  m->stack = pcre2_jit_stack_create((size_t)32 << 10, JIT_STACK_BYTES, NULL); /* NULL if there is no JIT */
  if (!m->data || !m->limits) {
    wn_matcher_destroy(m);
    return WN_ERR_MEMORY;
  }
  pcre2_set_heap_limit(m->limits, MATCH_HEAP_KIB);
  if (m->stack) pcre2_jit_stack_assign(m->limits, NULL, m->stack);
  *out = m;
  return WN_OK;
}
void wn_matcher_destroy(struct wn_matcher *m) {
  if (!m) return;
  if (m->data) pcre2_match_data_free(m->data);
  if (m->limits) pcre2_match_context_free(m->limits);
  if (m->stack) pcre2_jit_stack_free(m->stack);
  wn_free(m);
}

int wn_matcher_next(struct wn_matcher *m, const char *text, size_t bytes, size_t from, size_t *start, size_t *end) {
  /* For a run of spaces before a letter the match backtracks over the run once, so the step limit grows with the
   * text. */
  size_t left = bytes - from;
  pcre2_set_match_limit(m->limits, MATCH_STEPS + (left < 256000000 ? 8 * (uint32_t)left : 2048000000u));
  int found = pcre2_match(m->pattern->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, m->data, m->limits);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found = pcre2_match(m->pattern->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                        m->limits);
  if (found == PCRE2_ERROR_NOMATCH) return 0;
  if (found < 0) return -1;
  const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->data);
  *start = place[0];
  *end = place[1];
  return place[0] <= place[1] && place[0] >= from ? 1 : -1; /* \K in a look-ahead can swap them */
}
