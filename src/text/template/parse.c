/* A template's source to nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>
#include "base/number.h"
#include "text/template/lex.h"

struct parser {
  struct jinja_run *run;
  const struct jinja_token *at;
  int bodies, expressions, loops;
  struct jinja_node spare;
};
typedef struct jinja_node *node;

static node parse_expression(struct parser *p);
static node parse_unary(struct parser *p, bool filters);
static node parse_body(struct parser *p, const char *ends);

static bool parse_is(const struct parser *p, enum jinja_token_kind kind, const char *text) {
  return p->at->kind == kind && p->at->bytes == strlen(text) && !memcmp(p->at->text, text, p->at->bytes);
}
/* Takes this token, if it is the next. */
static bool parse_op(struct parser *p, const char *text) {
  const bool found = parse_is(p, TOKEN_OP, text);
  p->at += found;
  return found;
}
static bool parse_word(struct parser *p, const char *text) {
  const bool found = parse_is(p, TOKEN_NAME, text);
  p->at += found;
  return found;
}
static node parse_fail(struct parser *p, const char *expected) {
  p->run->line = p->at->line;
  wn_jinja_fail(p->run, WN_ERR_FORMAT, "expected %s, found %s%.*s%s", expected,
                p->at->kind == TOKEN_END ? "the end of the template" : "\"",
                (int)(p->at->bytes > 60 ? 60 : p->at->bytes), p->at->text, p->at->kind == TOKEN_END ? "" : "\"");
  return NULL;
}
static void parse_expect(struct parser *p, const char *op) {
  if (!parse_op(p, op)) parse_fail(p, op);
}
static node parse_node(struct parser *p, enum jinja_node_kind kind, node a, node b) {
  node n = wn_jinja_memory(p->run, 1, sizeof *n);
  if (!n) n = &p->spare; /* after a failure nothing is run */
  *n = (struct jinja_node){.kind = (unsigned char)kind, .line = p->at[-1].line, .a = a, .b = b};
  return n;
}
static node parse_named(struct parser *p, enum jinja_node_kind kind, node a) {
  if (p->at->kind != TOKEN_NAME) return parse_fail(p, "a name");
  p->at++;
  node n = parse_node(p, kind, a, NULL);
  n->value = jinja_text(p->at[-1].text, p->at[-1].bytes);
  return n;
}

/* --- literals --- */

/* The escapes that Python knows in texts. */
static struct jinja_value parse_text(struct parser *p) {
  static const char letters[] = "ntrabfv\\'\"", meant[] = "\n\t\r\a\b\f\v\\'\"";
  const char *s = p->at->text + 1, *end = p->at->text + p->at->bytes - 1;
  char *out = wn_jinja_memory(p->run, p->at->bytes + 1, 1);
  size_t n = 0;
  p->at++;
  if (!out || !memchr(s, '\\', (size_t)(end - s))) return jinja_text(s, (size_t)(end - s));
  while (s < end) {
    if (*s != '\\' || s + 1 >= end) {
      out[n++] = *s++;
      continue;
    }
    const char c = *++s, *known = strchr(letters, c);
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char hex[9] = {0};
    if (known && c) {
      out[n++] = meant[known - letters], s++;
    } else if (c == '\n') {
      s++;
    } else if (c >= '0' && c <= '7') {
      unsigned value = 0;
      for (int i = 0; i < 3 && s < end && *s >= '0' && *s <= '7'; i++) value = 8 * value + (unsigned)(*s++ - '0');
      n += (size_t)utf8proc_encode_char((utf8proc_int32_t)value, (utf8proc_uint8_t *)out + n);
    } else if (digits && end - s > digits) {
      memcpy(hex, s + 1, (size_t)digits);
      const long value = strtol(hex, NULL, 16);
      if (strspn(hex, "0123456789abcdefABCDEF") != (size_t)digits || value > 0x10ffff ||
          (value >= 0xd800 && value < 0xe000))
        return wn_jinja_fail(p->run, WN_ERR_FORMAT, "\\%c%s is no character", c, hex);
      n += (size_t)utf8proc_encode_char((utf8proc_int32_t)value, (utf8proc_uint8_t *)out + n);
      s += 1 + digits;
    } else {
      out[n++] = '\\';
    }
  }
  return jinja_text(out, n);
}

static node parse_number(struct parser *p) {
  node n = parse_node(p, NODE_LITERAL, NULL, NULL);
  char digits[40];
  size_t count = 0;
  for (size_t i = 0; i < p->at->bytes && count < sizeof digits - 1; i++)
    if (p->at->text[i] != '_') digits[count++] = p->at->text[i];
  digits[count] = 0;
  if (count > (p->at->kind == TOKEN_INT ? 18 : 38)) parse_fail(p, "a smaller number");
  n->value =
      p->at->kind == TOKEN_INT ? jinja_int(strtoll(digits, NULL, 10)) : jinja_float(wn_number_read(digits, NULL));
  p->at++;
  return n;
}

/* Items up to `close`, which is taken. *single: there is one, without a comma. */
static node parse_items(struct parser *p, const char *close, bool *single) {
  node first = NULL, *last = &first;
  bool comma = false;
  while (!p->run->failed && !parse_op(p, close)) {
    if (first && !comma) return parse_fail(p, close);
    *last = parse_expression(p);
    if (!*last) break;
    last = &(*last)->next;
    comma = parse_op(p, ",");
  }
  if (single) *single = first && !first->next && !comma;
  return first;
}

static node parse_dict(struct parser *p) {
  node n = parse_node(p, NODE_DICT, NULL, NULL), *last = &n->a;
  bool comma = true;
  while (!p->run->failed && !parse_op(p, "}")) {
    if (!comma) return parse_fail(p, "}");
    node pair = parse_node(p, NODE_PAIR, parse_expression(p), NULL);
    parse_expect(p, ":");
    pair->b = parse_expression(p);
    *last = pair, last = &pair->next;
    comma = parse_op(p, ",");
  }
  return n;
}

static node parse_primary(struct parser *p) {
  static const struct {
    const char *name;
    unsigned char kind;
    bool yes;
  } constants[] = {{"true", JINJA_BOOL, true},   {"True", JINJA_BOOL, true},  {"false", JINJA_BOOL, false},
                   {"False", JINJA_BOOL, false}, {"none", JINJA_NONE, false}, {"None", JINJA_NONE, false}};
  node n;
  bool single = false; /* items that fail say nothing of it */
  switch (p->at->kind) {
  case TOKEN_NAME:
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
      if (parse_word(p, constants[i].name)) {
        n = parse_node(p, NODE_LITERAL, NULL, NULL);
        n->value = (struct jinja_value){.kind = constants[i].kind, .as.yes = constants[i].yes};
        return n;
      }
    return parse_named(p, NODE_NAME, NULL);
  case TOKEN_TEXT:
    n = parse_node(p, NODE_LITERAL, NULL, NULL);
    n->value = parse_text(p);
    for (struct jinja_buffer b = {.run = p->run}; p->at->kind == TOKEN_TEXT && !p->run->failed;) { /* "a" "b" */
      const struct jinja_value more = parse_text(p);
      if (b.count == 0) wn_jinja_add_text(&b, &n->value);
      wn_jinja_add_text(&b, &more);
      n->value = wn_jinja_done(&b);
    }
    return n;
  case TOKEN_INT:
  case TOKEN_FLOAT:
    return parse_number(p);
  default:
    break;
  }
  if (parse_op(p, "(")) {
    n = parse_node(p, NODE_TUPLE, parse_items(p, ")", &single), NULL);
    return single ? n->a : n;
  }
  if (parse_op(p, "[")) return parse_node(p, NODE_LIST, parse_items(p, "]", NULL), NULL);
  if (parse_op(p, "{")) return parse_dict(p);
  return parse_fail(p, "an expression");
}

/* --- what follows an expression --- */

/* Arguments after their "(". */
static node parse_arguments(struct parser *p) {
  node first = NULL, *last = &first;
  bool comma = true;
  while (!p->run->failed && !parse_op(p, ")")) {
    if (!comma) return parse_fail(p, ")");
    if (p->at->kind == TOKEN_NAME && p->at[1].kind == TOKEN_OP && p->at[1].bytes == 1 && *p->at[1].text == '=') {
      *last = parse_named(p, NODE_NAME, NULL);
      p->at++;
      (*last)->a = parse_expression(p);
    } else {
      const char op = parse_op(p, "**") ? 'p' : parse_op(p, "*") ? '*' : 0;
      *last = parse_node(p, NODE_PAIR, parse_expression(p), NULL);
      (*last)->op = (unsigned char)op;
    }
    last = &(*last)->next;
    comma = parse_op(p, ",");
  }
  return first;
}

static node parse_subscript(struct parser *p, node of) {
  node part[3] = {NULL};
  int colons = 0;
  while (!p->run->failed && !parse_op(p, "]")) {
    if (parse_op(p, ":")) {
      if (++colons > 2) return parse_fail(p, "]");
    } else if (part[colons]) {
      return parse_fail(p, "]");
    } else {
      part[colons] = parse_expression(p);
    }
  }
  if (!colons && !part[0]) return parse_fail(p, "an index");
  node n = parse_node(p, colons ? NODE_SLICE : NODE_ITEM, of, part[0]);
  n->c = part[1], n->d = part[2];
  return n;
}

static node parse_postfix(struct parser *p, node n) {
  while (!p->run->failed) {
    if (parse_op(p, ".")) {
      if (p->at->kind == TOKEN_INT)
        n = parse_node(p, NODE_ITEM, n, parse_number(p));
      else
        n = parse_named(p, NODE_DOT, n);
    } else if (parse_op(p, "[")) {
      n = parse_subscript(p, n);
    } else if (parse_op(p, "(")) {
      n = parse_node(p, NODE_CALL, n, NULL);
      n->b = parse_arguments(p);
    } else {
      break;
    }
  }
  return n;
}

static node parse_filter(struct parser *p, node of) {
  node n = parse_named(p, NODE_FILTER, of);
  if (p->run->failed) return n;
  n->spec = wn_jinja_filter(&n->value);
  p->run->line = n->line;
  if (!n->spec)
    wn_jinja_fail(p->run, WN_ERR_UNSUPPORTED, "the filter \"%.*s\" is not known", (int)n->value.count,
                  n->value.as.text);
  if (parse_op(p, "(")) n->b = parse_arguments(p);
  return n;
}

static node parse_test(struct parser *p, node of) {
  const bool negated = parse_word(p, "not");
  node n = parse_named(p, NODE_TEST, of);
  if (p->run->failed) return n;
  n->op = negated;
  n->spec = wn_jinja_test(&n->value);
  p->run->line = n->line;
  if (!n->spec)
    wn_jinja_fail(p->run, WN_ERR_UNSUPPORTED, "the test \"%.*s\" is not known", (int)n->value.count, n->value.as.text);
  static const char *const words[] = {"else", "or", "and", "if", "is", "in", "not"};
  bool word = false;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) word = word || parse_is(p, TOKEN_NAME, words[i]);
  if (parse_op(p, "("))
    n->b = parse_arguments(p);
  else if ((p->at->kind == TOKEN_NAME && !word) || p->at->kind == TOKEN_TEXT || p->at->kind == TOKEN_INT ||
           p->at->kind == TOKEN_FLOAT || parse_is(p, TOKEN_OP, "[") || parse_is(p, TOKEN_OP, "{"))
    n->b = parse_node(p, NODE_PAIR, parse_postfix(p, parse_primary(p)), NULL);
  return n;
}

/* --- operators, from the tightest --- */

/* One level deeper; false where that is too deep. */
static bool parse_deeper(struct parser *p, int *depth) {
  if (++*depth <= WN_TEMPLATE_NESTING) return !p->run->failed;
  p->run->line = p->at->line;
  wn_jinja_fail(p->run, WN_ERR_FORMAT, "more than %d %s within each other", WN_TEMPLATE_NESTING,
                depth == &p->bodies ? "statements" : "expressions");
  return false;
}

static node parse_unary(struct parser *p, bool filters) {
  node n = NULL;
  if (!parse_deeper(p, &p->expressions)) {
    p->expressions--;
    return parse_node(p, NODE_LITERAL, NULL, NULL);
  }
  const char op = *p->at->text;
  if (parse_op(p, "-") || parse_op(p, "+")) {
    n = parse_node(p, NODE_SIGN, parse_unary(p, false), NULL);
    n->op = (unsigned char)op;
  } else {
    n = parse_primary(p);
  }
  n = parse_postfix(p, n);
  while (filters && !p->run->failed) {
    if (parse_op(p, "|"))
      n = parse_filter(p, n);
    else if (parse_word(p, "is"))
      n = parse_test(p, n);
    else if (parse_is(p, TOKEN_OP, "("))
      n = parse_postfix(p, n);
    else
      break;
  }
  p->expressions--;
  return n;
}

/* Levels of operators that group from the left. */
static const struct {
  const char *text;
  unsigned char level, op;
} operators[] = {{"+", 0, '+'}, {"-", 0, '-'},  {"~", 1, '~'}, {"*", 2, '*'},
                 {"/", 2, '/'}, {"//", 2, 'd'}, {"%", 2, '%'}, {"**", 3, 'p'}};
static node parse_level(struct parser *p, int level) {
  node n = level == 4 ? parse_unary(p, true) : parse_level(p, level + 1);
  for (size_t i = 0; level < 4 && i < sizeof operators / sizeof *operators && !p->run->failed; i++) {
    if (operators[i].level != level || !parse_op(p, operators[i].text)) continue;
    n = parse_node(p, NODE_BINARY, n, parse_level(p, level + 1));
    n->op = operators[i].op;
    i = (size_t)-1; /* from the first again */
  }
  return n;
}

static node parse_compare(struct parser *p) {
  static const struct {
    const char *text;
    unsigned char op;
  } rows[] = {{"==", COMPARE_EQ}, {"!=", COMPARE_NE}, {"<=", COMPARE_LE},
              {">=", COMPARE_GE}, {"<", COMPARE_LT},  {">", COMPARE_GT}};
  node first = parse_level(p, 0), n = NULL, *last = NULL;
  while (!p->run->failed) {
    int op = 0;
    for (size_t i = 0; !op && i < sizeof rows / sizeof *rows; i++)
      if (parse_op(p, rows[i].text)) op = rows[i].op;
    if (!op && parse_word(p, "in")) op = COMPARE_IN;
    if (!op && parse_is(p, TOKEN_NAME, "not") && p->at[1].kind == TOKEN_NAME && p->at[1].bytes == 2 &&
        !memcmp(p->at[1].text, "in", 2))
      op = COMPARE_NOT_IN, p->at += 2;
    if (!op) break;
    if (!n) n = parse_node(p, NODE_COMPARE, first, NULL), last = &n->b;
    *last = parse_node(p, NODE_PAIR, parse_level(p, 0), NULL);
    (*last)->op = (unsigned char)op;
    last = &(*last)->next;
  }
  return n ? n : first;
}

static node parse_not(struct parser *p) {
  int count = 0;
  while (parse_word(p, "not")) count++;
  node n = parse_compare(p);
  if (count == 0) return n;
  n = parse_node(p, NODE_NOT, n, NULL);
  return count % 2 ? n : parse_node(p, NODE_NOT, n, NULL);
}
static node parse_and(struct parser *p) {
  node n = parse_not(p);
  while (!p->run->failed && parse_word(p, "and")) n = parse_node(p, NODE_AND, n, parse_not(p));
  return n;
}
static node parse_or(struct parser *p) {
  node n = parse_and(p);
  while (!p->run->failed && parse_word(p, "or")) n = parse_node(p, NODE_OR, n, parse_and(p));
  return n;
}
static node parse_expression(struct parser *p) {
  node n = NULL;
  if (parse_deeper(p, &p->expressions)) n = parse_or(p);
  while (!p->run->failed && parse_word(p, "if")) {
    n = parse_node(p, NODE_CHOICE, parse_or(p), n);
    if (parse_word(p, "else")) n->c = parse_expression(p);
  }
  p->expressions--;
  return n ? n : parse_node(p, NODE_LITERAL, NULL, NULL);
}
/* Expressions with commas between them are a tuple. for: what is iterated over has no "if" of its own. */
static node parse_tuple(struct parser *p, bool over) {
  node n = over ? parse_or(p) : parse_expression(p), last = n;
  if (!parse_is(p, TOKEN_OP, ",")) return n;
  n = parse_node(p, NODE_TUPLE, n, NULL);
  while (!p->run->failed && parse_op(p, ",") && p->at->kind != TOKEN_CLOSE)
    last = last->next = over ? parse_or(p) : parse_expression(p);
  return n;
}
/* What is assigned to: names, with commas or brackets; of a set also a namespace's attribute. */
static node parse_target(struct parser *p, bool set) {
  const bool bracket = parse_op(p, "(");
  node n = parse_named(p, NODE_NAME, NULL), last = n;
  if (set && n && !bracket && parse_op(p, ".")) return parse_named(p, NODE_DOT, n);
  if (n && parse_is(p, TOKEN_OP, ",")) {
    n = parse_node(p, NODE_TUPLE, n, NULL);
    while (!p->run->failed && parse_op(p, ",") && p->at->kind == TOKEN_NAME)
      last = last->next = parse_named(p, NODE_NAME, NULL);
  }
  if (bracket) parse_expect(p, ")");
  return n;
}

/* --- statements --- */

static void parse_close(struct parser *p) {
  if (p->at->kind == TOKEN_CLOSE)
    p->at++;
  else
    parse_fail(p, "the end of the tag");
}
/* The end tag of a statement, of which parse_body has taken "{%". */
static void parse_end(struct parser *p, const char *name) {
  if (!parse_word(p, name)) parse_fail(p, name);
  parse_close(p);
}

static node parse_for(struct parser *p) {
  node n = parse_node(p, NODE_FOR, NULL, NULL);
  n->a = parse_target(p, false);
  if (!parse_word(p, "in")) return parse_fail(p, "in");
  n->b = parse_tuple(p, true);
  if (parse_word(p, "if")) n->c = parse_expression(p);
  if (parse_is(p, TOKEN_NAME, "recursive")) wn_jinja_fail(p->run, WN_ERR_UNSUPPORTED, "a recursive loop is not known");
  parse_close(p);
  p->loops++;
  n->d = parse_body(p, " else endfor ");
  p->loops--;
  if (parse_word(p, "else")) {
    parse_close(p);
    n->e = parse_body(p, " endfor ");
  }
  parse_end(p, "endfor");
  return n;
}

static node parse_if(struct parser *p) {
  node first = NULL, *at = &first;
  for (;;) {
    node n = *at = parse_node(p, NODE_IF, parse_expression(p), NULL);
    parse_close(p);
    n->b = parse_body(p, " elif else endif ");
    at = &n->c;
    if (p->run->failed || !parse_word(p, "elif")) break;
  }
  if (parse_word(p, "else")) {
    parse_close(p);
    *at = parse_node(p, NODE_BODY, parse_body(p, " endif "), NULL);
  }
  parse_end(p, "endif");
  return first;
}

static node parse_set(struct parser *p) {
  node n = parse_node(p, NODE_SET, NULL, NULL);
  n->a = parse_target(p, true);
  if (parse_op(p, "=")) {
    n->b = parse_tuple(p, false);
    parse_close(p);
    return n;
  }
  for (int filters = 0; !p->run->failed && parse_op(p, "|"); filters++) {
    if (filters == SET_FILTERS) return parse_fail(p, "fewer filters");
    n->d = parse_filter(p, n->d);
  }
  parse_close(p);
  n->c = parse_node(p, NODE_BODY, parse_body(p, " endset "), NULL);
  parse_end(p, "endset");
  return n;
}

static node parse_macro(struct parser *p) {
  node n = parse_named(p, NODE_MACRO, NULL), *last = n ? &n->a : NULL;
  bool comma = true;
  parse_expect(p, "(");
  while (!p->run->failed && !parse_op(p, ")")) {
    if (!comma) return parse_fail(p, ")");
    *last = parse_named(p, NODE_NAME, NULL);
    if (parse_op(p, "=")) (*last)->a = parse_expression(p);
    if (*last) last = &(*last)->next;
    comma = parse_op(p, ",");
  }
  parse_close(p);
  const int loops = p->loops;
  p->loops = 0;
  if (!p->run->failed) n->b = parse_body(p, " endmacro ");
  p->loops = loops;
  parse_end(p, "endmacro");
  return n;
}

static node parse_loop_control(struct parser *p, enum jinja_node_kind kind) {
  if (p->loops == 0) parse_fail(p, "a loop around break or continue");
  parse_close(p);
  return parse_node(p, kind, NULL, NULL);
}

static node parse_statement(struct parser *p) {
  if (parse_word(p, "for")) return parse_for(p);
  if (parse_word(p, "if")) return parse_if(p);
  if (parse_word(p, "set")) return parse_set(p);
  if (parse_word(p, "macro")) return parse_macro(p);
  if (parse_word(p, "break")) return parse_loop_control(p, NODE_BREAK);
  if (parse_word(p, "continue")) return parse_loop_control(p, NODE_CONTINUE);
  if (parse_word(p, "generation")) { /* what transformers masks for training; the text is the same */
    parse_close(p);
    node n = parse_node(p, NODE_BODY, parse_body(p, " endgeneration "), NULL);
    parse_end(p, "endgeneration");
    return n;
  }
  p->run->line = p->at->line;
  wn_jinja_fail(p->run, WN_ERR_UNSUPPORTED, "the statement \"%.*s\" is not known here", (int)p->at->bytes, p->at->text);
  return NULL;
}

/* Statements up to a tag whose name is among `ends` (each with a space before and after); its "{%" is taken. */
static node parse_body(struct parser *p, const char *ends) {
  node first = NULL, *last = &first;
  bool open = parse_deeper(p, &p->bodies);
  while (open && !p->run->failed) {
    const struct jinja_token *t = p->at++;
    if (t->kind == TOKEN_END) {
      p->at--;
      char all[48];
      snprintf(all, sizeof all, "one of%.*s", (int)strlen(ends) - (*ends != 0), ends);
      if (*ends) parse_fail(p, all);
      break;
    }
    if (t->kind == TOKEN_BLOCK) {
      char name[32] = " ";
      if (p->at->kind == TOKEN_NAME && p->at->bytes < sizeof name - 2) {
        memcpy(name + 1, p->at->text, p->at->bytes);
        memcpy(name + 1 + p->at->bytes, " ", 2);
        if (strstr(ends, name)) break;
      }
      *last = parse_statement(p);
    } else if (t->kind == TOKEN_PRINT) {
      *last = parse_node(p, NODE_PRINT, parse_tuple(p, false), NULL);
      parse_close(p);
    } else {
      *last = parse_node(p, NODE_TEXT, NULL, NULL);
      (*last)->value = jinja_text(t->text, t->bytes);
    }
    if (*last) last = &(*last)->next;
  }
  p->bodies--;
  return first;
}

struct jinja_node *wn_jinja_parse(struct jinja_run *r, const char *source) {
  size_t n = 0, bytes = strlen(source);
  char *copy = wn_jinja_memory(r, bytes + 1, 1);
  if (!copy) return NULL;
  for (size_t i = 0; i < bytes; i++) { /* line ends are \n, and the last is not the template's */
    if (source[i] == '\r' && source[i + 1] == '\n') continue;
    copy[n++] = source[i];
    if (source[i] == '\r') copy[n - 1] = '\n';
  }
  if (n && copy[n - 1] == '\n') n--;
  struct jinja_lexer x = {.run = r, .source = copy, .bytes = n, .line = 1};
  wn_jinja_lex(&x);
  if (r->failed) return NULL;
  struct parser p = {.run = r, .at = x.tokens};
  node all = parse_body(&p, "");
  return r->failed ? NULL : all;
}
