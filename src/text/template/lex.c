/* Tokens of a template, with Jinja's rules for white space around tags. */
#include "text/template/lex.h"

#include <ctype.h>

static bool lex_is(const struct jinja_lexer *x, const char *what) {
  const size_t n = strlen(what);
  return n <= x->bytes - x->at && !memcmp(x->source + x->at, what, n);
}
static bool lex_blank(char c) {
  return c == ' ' || (c >= 9 && c <= 13);
}
static void lex_skip(struct jinja_lexer *x) {
  while (x->at < x->bytes && lex_blank(x->source[x->at])) x->line += x->source[x->at++] == '\n';
}
static bool lex_name(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

static void lex_put(struct jinja_lexer *x, enum jinja_token_kind kind, const char *text, size_t bytes) {
  if (x->count == x->room) {
    struct jinja_token *wider = wn_jinja_memory(x->run, 2 * x->room + 64, sizeof *wider);
    if (!wider) return;
    if (x->count) memcpy(wider, x->tokens, x->count * sizeof *wider);
    x->tokens = wider, x->room = 2 * x->room + 64;
  }
  x->tokens[x->count++] = (struct jinja_token){(unsigned char)kind, x->line, text, bytes};
}

/* What ends a tag of this kind ('{': a print, '%', '#'), with its '-' or '+'; 0: no end here. */
static size_t lex_end(const struct jinja_lexer *x, char kind) {
  const char *at = x->source + x->at;
  const size_t left = x->bytes - x->at;
  const char close = kind == '{' ? '}' : kind;
  if (left >= 2 && at[0] == close && at[1] == '}') return 2;
  return left >= 3 && (*at == '-' || (*at == '+' && kind != '{')) && at[1] == close && at[2] == '}' ? 3 : 0;
}
/* Takes the end, and the white space after it that goes with it. */
static void lex_close(struct jinja_lexer *x, size_t end, char kind) {
  const char sign = end == 3 ? x->source[x->at] : 0;
  x->at += end;
  if (sign == '-')
    lex_skip(x);
  else if (kind != '{' && !sign && lex_is(x, "\n"))
    x->at++, x->line++;
}

/* One token within a tag. */
static void lex_inner(struct jinja_lexer *x, int *brackets) {
  static const char *const pairs[] = {"**", "//", "==", "!=", "<=", ">="};
  const char *begin = x->source + x->at, *p = begin, *end = x->source + x->bytes;
  enum jinja_token_kind kind = TOKEN_OP;
  if (*p == '"' || *p == '\'') {
    for (p++; p < end && *p != *begin; p++) p += *p == '\\' && p + 1 < end;
    if (p >= end) {
      x->run->line = x->line;
      wn_jinja_fail(x->run, WN_ERR_FORMAT, "a text has no end");
      return;
    }
    kind = TOKEN_TEXT;
    p++;
  } else if (isdigit((unsigned char)*p)) {
    const bool dotted = x->count && x->tokens[x->count - 1].kind == TOKEN_OP && *x->tokens[x->count - 1].text == '.';
    kind = TOKEN_INT;
    while (p < end && (isdigit((unsigned char)*p) || *p == '_')) p++;
    if (!dotted && p + 1 < end && *p == '.' && isdigit((unsigned char)p[1])) {
      kind = TOKEN_FLOAT;
      for (p++; p < end && isdigit((unsigned char)*p);) p++;
    }
    const char *e = p + 1 < end && (*p == 'e' || *p == 'E') ? p + 1 : end;
    if (e + 1 < end && (*e == '-' || *e == '+')) e++;
    if (!dotted && e < end && isdigit((unsigned char)*e))
      for (kind = TOKEN_FLOAT, p = e; p < end && isdigit((unsigned char)*p);) p++;
  } else if (lex_name(*p)) {
    kind = TOKEN_NAME;
    while (p < end && lex_name(*p)) p++;
  } else {
    p++;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
      if (lex_is(x, pairs[i])) p = begin + 2;
    *brackets += strchr("([{", *begin) ? 1 : strchr(")]}", *begin) ? -1 : 0;
    if (!strchr("+-*/%~[](){}.,:|=<>!", *begin) || (*begin == '!' && p == begin + 1)) {
      x->run->line = x->line;
      wn_jinja_fail(x->run, WN_ERR_FORMAT, "unexpected character '%c' (0x%02x)",
                    isprint((unsigned char)*begin) ? *begin : '?', (unsigned)(unsigned char)*begin);
    }
  }
  lex_put(x, kind, begin, (size_t)(p - begin));
  for (; begin < p; begin++) x->line += *begin == '\n';
  x->at = (size_t)(p - x->source);
}

static void lex_fail(struct jinja_lexer *x, const char *what, int line) {
  x->run->line = line;
  wn_jinja_fail(x->run, WN_ERR_FORMAT, "%s has no end", what);
}

/* {% raw %}: what stands up to {% endraw %} is text. False: it is another tag. */
static bool lex_raw(struct jinja_lexer *x) {
  const struct jinja_lexer begin = *x;
  lex_skip(x);
  const bool raw = lex_is(x, "raw");
  x->at += raw ? 3 : 0;
  lex_skip(x);
  const size_t end = raw ? lex_end(x, '%') : 0;
  if (!end) {
    x->at = begin.at, x->line = begin.line;
    return false;
  }
  x->at += end;
  if (end == 3) lex_skip(x);
  const size_t from = x->at;
  for (; x->at < x->bytes; x->at++) {
    x->line += x->source[x->at] == '\n';
    if (!lex_is(x, "{%")) continue;
    size_t n = x->at;
    const struct jinja_lexer here = *x;
    x->at += 2;
    const bool strip = lex_is(x, "-");
    x->at += strip || lex_is(x, "+");
    lex_skip(x);
    const bool ends = lex_is(x, "endraw");
    x->at += ends ? 6 : 0;
    lex_skip(x);
    const size_t close = ends ? lex_end(x, '%') : 0;
    if (close) {
      while (strip && n > from && lex_blank(x->source[n - 1])) n--;
      lex_put(x, TOKEN_DATA, x->source + from, n - from);
      lex_close(x, close, '%');
      return true;
    }
    x->at = here.at, x->line = here.line;
  }
  lex_fail(x, "{% raw %}", begin.line);
  return true;
}

/* A tag whose "{{", "{%" or "{#" and sign are taken. */
static void lex_tag(struct jinja_lexer *x, char kind) {
  const int line = x->line;
  int brackets = 0;
  size_t end = 0;
  if (kind == '%' && lex_raw(x)) return;
  if (kind == '#') {
    while (x->at < x->bytes && !(end = lex_end(x, '#'))) x->line += x->source[x->at++] == '\n';
    if (x->at < x->bytes)
      lex_close(x, end, '#');
    else
      lex_fail(x, "a comment", line);
    return;
  }
  lex_put(x, kind == '%' ? TOKEN_BLOCK : TOKEN_PRINT, x->source + x->at, 0);
  for (;;) {
    lex_skip(x);
    if (x->run->failed) return;
    if (x->at == x->bytes) {
      lex_fail(x, kind == '%' ? "a {% tag" : "a {{ tag", line);
      return;
    }
    end = brackets <= 0 ? lex_end(x, kind) : 0;
    if (end) break;
    lex_inner(x, &brackets);
  }
  lex_put(x, TOKEN_CLOSE, x->source + x->at, end);
  lex_close(x, end, kind);
}

void wn_jinja_lex(struct jinja_lexer *x) {
  bool line_begins = true;
  while (x->at < x->bytes && !x->run->failed) {
    size_t at = x->at, end;
    while (at + 1 < x->bytes && !(x->source[at] == '{' && strchr("{%#", x->source[at + 1]))) at++;
    const bool tag = at + 1 < x->bytes;
    end = at = tag ? at : x->bytes;
    const char kind = tag ? x->source[at + 1] : 0, sign = at + 2 < x->bytes ? x->source[at + 2] : 0;
    size_t begin = at; /* of the line's white space before the tag */
    while (begin > x->at && x->source[begin - 1] != '\n' && lex_blank(x->source[begin - 1])) begin--;
    if (tag && sign == '-')
      while (end > x->at && lex_blank(x->source[end - 1])) end--;
    else if (tag && sign != '+' && kind != '{' && (begin > x->at ? x->source[begin - 1] == '\n' : line_begins))
      end = begin;
    if (end > x->at) lex_put(x, TOKEN_DATA, x->source + x->at, end - x->at);
    for (size_t i = x->at; i < at; i++) x->line += x->source[i] == '\n';
    x->at = at;
    if (!tag) break;
    x->at += 2 + (sign == '-' || sign == '+');
    lex_tag(x, kind);
    line_begins = x->source[x->at - 1] == '\n';
  }
  lex_put(x, TOKEN_END, x->source + x->bytes, 0);
}
