/* Inside the interpreter: values, nodes and what runs them. Values are immutable but for namespaces, so parts of texts
 * and lists are shared. All memory is the run's and freed at its end. After a failure the first error stands, every
 * value is undefined, and loops end at their next step. */
#ifndef WN_TEXT_TEMPLATE_JINJA_H
#define WN_TEXT_TEMPLATE_JINJA_H

#include <stdbool.h>
#include <string.h>
#include "base/error.h"
#include "text/template/template.h"

enum jinja_kind {
  JINJA_UNDEFINED, /* text: its name */
  JINJA_NONE,
  JINJA_BOOL,
  JINJA_INT,
  JINJA_FLOAT,
  JINJA_TEXT,
  JINJA_LIST,
  JINJA_TUPLE,
  JINJA_DICT,
  JINJA_SPACE, /* a namespace */
  JINJA_LOOP,
  JINJA_MACRO,
  JINJA_METHOD, /* of a value, or a function */
};
struct jinja_pair;
struct jinja_value {
  unsigned char kind, origin;
  bool dotted; /* JINJA_UNDEFINED: an attribute or element of something */
  union {
    bool yes;
    int64_t number;
    double real;
    const char *text;                /* [count] */
    const struct jinja_value *items; /* [count] */
    const struct jinja_pair *pairs;  /* [count] */
    struct jinja_frame *space;
    const struct jinja_loop *loop;
    const struct jinja_macro *macro;
    const struct jinja_method *method;
  } as;
  size_t count;
  const unsigned char *from; /* JINJA_TEXT: origin of each byte, or NULL: `origin` is every byte's */
};
struct jinja_pair {
  struct jinja_value key, value;
};
struct jinja_frame { /* the variables of a loop's turn, a macro's call; a namespace */
  struct jinja_frame *up;
  struct jinja_pair *pairs; /* [count] */
  size_t count, room;
};
struct jinja_loop {
  const struct jinja_value *items; /* [count] */
  size_t count, at;
};
struct jinja_macro {
  const struct jinja_node *node;
  struct jinja_frame *frame;
};

/* What is called: a filter, test, method or function. */
struct jinja_args {
  struct jinja_value at[8], names[8]; /* names: undefined for one by position, which come first */
  int count;
};
struct jinja_call {
  struct jinja_value self; /* the value that a filter, test or method is of */
  struct jinja_value at[6];
  bool given[6];
  const struct jinja_args *all;
};
struct jinja_run;
struct jinja_spec {
  const char *name;
  const char *params; /* names, with a space after each; "$" before: of the value's text; "*": it reads `all` */
  struct jinja_value (*call)(struct jinja_run *r, const struct jinja_call *c);
};
struct jinja_method {
  const struct jinja_spec *spec;
  struct jinja_value self;
};

enum jinja_node_kind {
  NODE_TEXT,  /* value */
  NODE_PRINT, /* a */
  NODE_IF,    /* a: condition, b: then, c: else */
  NODE_FOR,   /* a: target, b: over, c: condition, d: body, e: else */
  NODE_SET,   /* a: target, b: value; NULL: c: body, d: filters of the text in it */
  NODE_MACRO, /* value: name, a: parameters (NODE_NAME, a: default), b: body */
  NODE_BODY,  /* a: statements */
  NODE_BREAK,
  NODE_CONTINUE,
  NODE_LITERAL, /* value */
  NODE_NAME,    /* value; of an argument also a: its value */
  NODE_LIST,    /* a: items */
  NODE_TUPLE,   /* a: items */
  NODE_DICT,    /* a: keys, each with a: value */
  NODE_PAIR,    /* a: key, b: value; an argument a, op '*': a list of them, 'p': a dict of them */
  NODE_DOT,     /* a, value: name */
  NODE_ITEM,    /* a, b: index */
  NODE_SLICE,   /* a, b: begin, c: end, d: step, NULL where left out */
  NODE_CALL,    /* a, b: arguments */
  NODE_FILTER,  /* a: NULL: the text of a block; spec, b: arguments */
  NODE_TEST,    /* a, spec, b: arguments; op: 1: negated */
  NODE_NOT,     /* a */
  NODE_SIGN,    /* op: '-', '+'; a */
  NODE_BINARY,  /* op, a, b; '/' twice: 'd', '*' twice: 'p' */
  NODE_COMPARE, /* a, b: further operands, each NODE_PAIR with op and a */
  NODE_AND,     /* a, b */
  NODE_OR,      /* a, b */
  NODE_CHOICE,  /* a: condition, b: then, c: else or NULL */
};
enum { SET_FILTERS = 8 }; /* of the text of a block */
enum jinja_comparison {
  COMPARE_EQ = 1,
  COMPARE_NE,
  COMPARE_LT,
  COMPARE_LE,
  COMPARE_GT,
  COMPARE_GE,
  COMPARE_IN,
  COMPARE_NOT_IN
};
struct jinja_node {
  unsigned char kind, op;
  int line;
  const struct jinja_spec *spec;
  struct jinja_value value;
  struct jinja_node *a, *b, *c, *d, *e, *next;
};

struct jinja_buffer {
  struct jinja_run *run;
  char *data;
  unsigned char *from;
  size_t count, room;
};
struct jinja_block {
  struct jinja_block *next;
  size_t used, room;
  _Alignas(16) char data[];
};
struct jinja_run {
  wn_context *ctx;
  const struct wn_template_input *input;
  struct jinja_block *blocks; /* of memory */
  size_t left, steps;         /* memory and steps that may still be taken */
  int depth, line;
  bool failed;
  wn_status status;
  struct jinja_buffer *out;
  struct jinja_frame *frame;
};

/* --- values (value.c) --- */

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
struct jinja_value
wn_jinja_fail(struct jinja_run *r, wn_status status, const char *format, ...); /* undefined */
/* Memory, zero-filled; NULL after a failure, or with 0 bytes. */
void *wn_jinja_memory(struct jinja_run *r, size_t count, size_t size);
/* False after a failure, or where the steps for so many bytes are not left. */
bool wn_jinja_step(struct jinja_run *r, size_t bytes);
bool wn_jinja_enter(struct jinja_run *r); /* one level deeper; in any case with wn_jinja_leave */
static inline void wn_jinja_leave(struct jinja_run *r) {
  r->depth--;
}

static inline struct jinja_value jinja_none(void) {
  return (struct jinja_value){.kind = JINJA_NONE};
}
static inline struct jinja_value jinja_bool(bool yes) {
  return (struct jinja_value){.kind = JINJA_BOOL, .as.yes = yes};
}
static inline struct jinja_value jinja_int(int64_t n) {
  return (struct jinja_value){.kind = JINJA_INT, .as.number = n};
}
static inline struct jinja_value jinja_float(double x) {
  return (struct jinja_value){.kind = JINJA_FLOAT, .as.real = x};
}
static inline struct jinja_value jinja_text(const char *text, size_t bytes) {
  return (struct jinja_value){.kind = JINJA_TEXT, .as.text = text, .count = bytes};
}
static inline struct jinja_value jinja_list(const struct jinja_value *items, size_t count) {
  return (struct jinja_value){.kind = JINJA_LIST, .as.items = items, .count = count};
}
static inline bool jinja_is(const struct jinja_value *v, const char *text) {
  return v->count == strlen(text) && (v->count == 0 || !memcmp(v->as.text, text, v->count));
}
static inline bool jinja_same(const struct jinja_value *a, const struct jinja_value *b) {
  return a->count == b->count && (a->count == 0 || !memcmp(a->as.text, b->as.text, a->count));
}
static inline bool jinja_listed(const struct jinja_value *v) {
  return v->kind == JINJA_LIST || v->kind == JINJA_TUPLE;
}
static inline bool jinja_whole(const struct jinja_value *v) {
  return v->kind == JINJA_INT || v->kind == JINJA_BOOL;
}
static inline bool jinja_numeric(const struct jinja_value *v) {
  return jinja_whole(v) || v->kind == JINJA_FLOAT;
}
static inline int64_t jinja_whole_of(const struct jinja_value *v) {
  return v->kind == JINJA_BOOL ? v->as.yes : v->as.number;
}
static inline double jinja_real_of(const struct jinja_value *v) {
  return v->kind == JINJA_FLOAT ? v->as.real : (double)jinja_whole_of(v);
}

struct jinja_value wn_jinja_from_json(struct jinja_run *r, const json_t *j, enum wn_origin origin);
struct jinja_value wn_jinja_part(const struct jinja_value *text, size_t begin, size_t end); /* bytes */
const char *wn_jinja_kind(const struct jinja_value *v);                                     /* Python's name */
bool wn_jinja_true(const struct jinja_value *v);
bool wn_jinja_equal(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b);
/* Negative, 0 or positive; a failure where the two have no order. */
int wn_jinja_order(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b);
bool wn_jinja_contains(struct jinja_run *r, const struct jinja_value *all, const struct jinja_value *one);
/* The items of a list, the keys of a dict, the characters of a text; undefined has none. */
struct jinja_value wn_jinja_items(struct jinja_run *r, const struct jinja_value *v);
const struct jinja_value *wn_jinja_find(struct jinja_run *r, const struct jinja_pair *pairs, size_t count,
                                        const struct jinja_value *key);
void wn_jinja_set(struct jinja_run *r, struct jinja_frame *frame, const struct jinja_value *key,
                  const struct jinja_value *value);
/* A copy in the order of the keys; equal ones stay in their order. NULL after a failure, or of none. */
struct jinja_pair *wn_jinja_sort(struct jinja_run *r, const struct jinja_pair *pairs, size_t count, bool reverse);
size_t wn_jinja_character(const char *text, size_t bytes); /* bytes of the first one, at least 1 */
size_t wn_jinja_characters(struct jinja_run *r, const struct jinja_value *text);

/* --- texts (text.c) --- */

void wn_jinja_add(struct jinja_buffer *b, const char *text, size_t bytes, enum wn_origin origin);
void wn_jinja_add_text(struct jinja_buffer *b, const struct jinja_value *text);
struct jinja_value wn_jinja_done(const struct jinja_buffer *b);
void wn_jinja_write(struct jinja_buffer *b, const struct jinja_value *v); /* as {{ }} does */
struct jinja_value wn_jinja_string(struct jinja_run *r, const struct jinja_value *v);
struct jinja_value wn_jinja_json(struct jinja_run *r, const struct jinja_call *c); /* the filter tojson */

/* --- what is called (filters.c, methods.c) --- */

const struct jinja_spec *wn_jinja_find_spec(const struct jinja_spec *list, size_t count,
                                            const struct jinja_value *name);
#define JINJA_FIND(list, name) wn_jinja_find_spec(list, sizeof(list) / sizeof *(list), name)
const struct jinja_spec *wn_jinja_filter(const struct jinja_value *name); /* NULL: not known */
const struct jinja_spec *wn_jinja_text_filter(const struct jinja_value *name);
const struct jinja_spec *wn_jinja_test(const struct jinja_value *name);
const struct jinja_spec *wn_jinja_function(const struct jinja_value *name);
const struct jinja_spec *wn_jinja_method(const struct jinja_value *self, const struct jinja_value *name);
struct jinja_value wn_jinja_call(struct jinja_run *r, const struct jinja_spec *spec, const struct jinja_value *self,
                                 const struct jinja_args *args);
struct jinja_value wn_jinja_attribute(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *name);
/* v[key]; `dots`: a path like "function.name", `otherwise` (or NULL) in place of what is undefined on it. */
struct jinja_value wn_jinja_element(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *key);
struct jinja_value wn_jinja_path(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *dots,
                                 const struct jinja_value *otherwise);
struct jinja_value wn_jinja_strip(struct jinja_run *r, const struct jinja_value *text, const struct jinja_value *set,
                                  int sides); /* 1: left, 2: right */
enum jinja_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_WORDS, CASE_FIRST };
struct jinja_value wn_jinja_case(struct jinja_run *r, const struct jinja_value *text, enum jinja_case how);
struct jinja_value wn_jinja_lines(struct jinja_run *r, const struct jinja_value *text);

/* --- reading and running (parse.c, eval.c, run.c) --- */

struct jinja_node *wn_jinja_parse(struct jinja_run *r, const char *source);
struct jinja_value wn_jinja_eval(struct jinja_run *r, const struct jinja_node *n);
#endif
