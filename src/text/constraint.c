/* Constraints: finds all tokens that the automaton (json_machine.h) accepts. One walk over the tree of tokens
 * (token_tree.h) follows the automaton byte by byte and turns back where no state is left.
 *
 * Inside a string nearly all tokens are accepted, and the walk would visit most of the tree. So the tree stores what
 * each token does inside a string: it stays in the string and adds so many characters, or it has the quote that ends
 * it. Only what follows such quotes is walked. Cost: [V] bytes read and written, and some hundred nodes.
 *
 * Why some token is always accepted: from each state the text can be completed (json_machine.h), and each byte that
 * this may need is a token by itself. The latter is checked when a constraint is created (for characters of several
 * bytes, when the tree is built). */
#include "text/constraint.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fields.h"
#include "base/misuse.h"

struct wn_constraint {
  const struct wn_token_tree *tree;
  struct wn_schema *schema;
  struct wn_json_machine machine;
  uint8_t *allowed; /* [entries] */
};

/* --- the walk --- */

static void constraint_walk(struct wn_constraint *c, uint32_t node, uint32_t first, uint32_t count);

/* Accepts the tokens at and below a node that stay in the string, if they have at most `most` characters in all. The
 * text is between characters of a string here. */
static void constraint_take(struct wn_constraint *c, uint32_t node, const uint8_t *characters, int most) {
  const struct wn_token_tree *t = c->tree;
  const struct wn_tree_node *n = &t->nodes[node];
  if (node == 0)
    for (int32_t id = 0; id < t->entries; id++) c->allowed[id] |= characters[id] <= most;
  else
    for (uint32_t i = n->own; i < n->last; i++) c->allowed[t->order[i]] |= characters[t->order[i]] <= most;
}

static void constraint_take_simple(struct wn_constraint *c, uint32_t node) {
  const struct wn_token_tree *t = c->tree;
  const struct wn_tree_node *n = &t->nodes[node];
  if (node == 0)
    for (int32_t id = 0; id < t->entries; id++) c->allowed[id] |= t->simple[id];
  else
    for (uint32_t i = n->own; i < n->last; i++) c->allowed[t->order[i]] |= t->simple[t->order[i]];
}

/* Inside a string, or a name that is not the schema's: accepts the tokens that stay in it, and walks on after its
 * end. */
static void constraint_walk_string(struct wn_constraint *c, uint32_t node, uint32_t first, bool simple) {
  const struct wn_token_tree *t = c->tree;
  struct wn_json_machine *m = &c->machine;
  const struct wn_json_state s = m->states[first];
  const struct wn_tree_node *n = &t->nodes[node];
  int64_t min = 0, max = INT64_MAX;
  if (s.mode == WN_JSON_STRING) min = m->schema->shapes[s.what].min, max = m->schema->shapes[s.what].max;
  const int64_t room = max == INT64_MAX ? max : max - (int64_t)s.at; /* characters */
  if (simple)
    constraint_take_simple(c, node);
  else
    constraint_take(c, node, t->characters,
                    room < WN_TREE_NOT_PLAIN - n->characters ? n->characters + (int)room : WN_TREE_NOT_PLAIN - 1);
  uint32_t low = 0;
  for (uint32_t high = t->quote_count; low < high;) {
    const uint32_t middle = low + (high - low) / 2;
    if (t->quotes[middle] <= node)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < t->quote_count && t->quotes[low] < n->end; low++) {
    const struct wn_tree_node *quote = &t->nodes[t->quotes[low]];
    const int64_t more = quote->characters - n->characters;
    if (more > room || (int64_t)s.at + more < min || (simple && !quote->simple)) continue;
    const uint32_t states = m->state_count, frames = m->frame_count;
    wn_json_end_string(m, &s);
    if (!m->failed) constraint_walk(c, t->quotes[low], states, m->state_count - states);
    m->state_count = states;
    m->frame_count = frames;
  }
}

/* Accepts the tokens of a node, reached in the `count` states from `first` on, and walks its children. */
static void constraint_walk(struct wn_constraint *c, uint32_t node, uint32_t first, uint32_t count) {
  const struct wn_token_tree *t = c->tree;
  struct wn_json_machine *m = &c->machine;
  const struct wn_tree_node *n = &t->nodes[node];
  bool simple = false;
  for (uint32_t i = n->first; i < n->own; i++) c->allowed[t->order[i]] = 1;
  if (count == 1 && n->string == WN_STRING_PLAIN && m->states[first].part == WN_STRING_PLAIN &&
      (m->states[first].mode == WN_JSON_STRING || wn_json_is_free_name(m, &m->states[first], &simple))) {
    constraint_walk_string(c, node, first, simple);
    return;
  }
  for (uint32_t child = node + 1; child < n->end && !m->failed; child = t->nodes[child].end) {
    const uint32_t states = m->state_count, frames = m->frame_count;
    wn_json_step(m, first, count, t->nodes[child].byte);
    if (m->state_count > states) constraint_walk(c, child, states, m->state_count - states);
    m->state_count = states;
    m->frame_count = frames;
  }
}

/* Walks from each state separately, as wn_constraint_accept does. Where there are too many states some are dropped;
 * this way an accepted token never ends up without a state. */
const uint8_t *wn_constraint_allowed(wn_constraint *c) {
  const uint32_t count = c->machine.state_count;
  memset(c->allowed, 0, (size_t)c->tree->entries);
  for (uint32_t i = 0; i < count && !c->machine.failed; i++) constraint_walk(c, 0, i, 1);
  if (c->machine.failed) return NULL;
  for (uint32_t i = 0; i < c->tree->end_count; i++)
    if (wn_constraint_is_complete(c)) c->allowed[c->tree->ends[i]] = 1;
  return c->allowed;
}

wn_status wn_constraint_next(wn_context *ctx, wn_constraint *c, int64_t V, bool *over, const uint8_t **allowed,
                             int32_t *entries) {
  uint8_t any = 0;
  *over = false;
  *entries = c->tree->entries;
  if (V < *entries)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "constraint: %lld tokens may be drawn, the tokenizer has %d", (long long)V,
                   *entries);
  *allowed = wn_constraint_allowed(c);
  if (!*allowed) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a constraint");
  for (int32_t id = 0; id < *entries; id++) any |= (*allowed)[id];
  *over = !any && wn_constraint_is_complete(c);
  if (*over || any) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "constraint: no token continues the JSON text");
}

wn_status wn_constraint_mask(wn_context *ctx, wn_constraint *c, float *logits, int64_t V, bool *over) {
  WN_CHECK_CALL(WN_HANDLE_AS("constraint", c, CONSTRAINT), WN_POINTER(logits), WN_POINTER(over));
  const uint8_t *allowed;
  int32_t entries;
  WN_TRY(wn_constraint_next(ctx, c, V, over, &allowed, &entries));
  if (*over) return WN_OK;
  for (int32_t id = 0; id < entries; id++) logits[id] = allowed[id] ? logits[id] : -INFINITY;
  for (int64_t id = entries; id < V; id++) logits[id] = -INFINITY;
  return WN_OK;
}

/* --- a token --- */

/* Appends the states that a token's bytes lead to from one state. */
static void constraint_follow(struct wn_json_machine *m, uint32_t state, const char *text, uint32_t bytes) {
  const uint32_t begin = m->state_count;
  uint32_t first = state, count = 1;
  for (uint32_t i = 0; i < bytes && count > 0; i++) {
    const uint32_t next = m->state_count;
    wn_json_step(m, first, count, (unsigned char)text[i]);
    first = next;
    count = m->state_count - next;
  }
  memmove(m->states + begin, m->states + first, count * sizeof *m->states);
  m->state_count = begin + count;
}

wn_status wn_constraint_accept(wn_context *ctx, wn_constraint *c, int32_t id) {
  WN_CHECK_CALL(WN_HANDLE_AS("constraint", c, CONSTRAINT));
  const struct wn_token_tree *t = c->tree;
  struct wn_json_machine *m = &c->machine;
  const uint32_t states = m->state_count, frames = m->frame_count;
  bool accepted = false;
  for (uint32_t i = 0; i < t->end_count; i++) accepted = accepted || t->ends[i] == id;
  if (accepted && wn_constraint_is_complete(c)) return WN_OK;
  if (id >= 0 && id < t->entries && t->at[id + 1] > t->at[id]) {
    for (uint32_t i = 0; i < states && !m->failed; i++)
      constraint_follow(m, i, t->text + t->at[id], t->at[id + 1] - t->at[id]);
    if (m->failed) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a constraint");
    wn_json_unique(m, states);
    if (m->state_count > states) {
      wn_json_keep(m, states);
      return WN_OK;
    }
  }
  m->state_count = states;
  m->frame_count = frames;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "constraint: token %d may not come here", id);
}

bool wn_constraint_is_complete(const wn_constraint *c) {
  WN_CHECK_OR(false, WN_HANDLE_AS("constraint", c, CONSTRAINT));
  for (uint32_t i = 0; i < c->machine.state_count; i++)
    if (wn_json_is_complete(&c->machine, &c->machine.states[i])) return true;
  return false;
}

/* --- a constraint --- */

/* Is each byte of a character, as a string has it, a token? */
static bool constraint_writes(const struct wn_token_tree *t, uint32_t c) {
  static const char escapes[] = "\b\f\n\r\t\"\\", escaped[] = "bfnrt\"\\";
  const char *escape = c && c < 0x80 ? strchr(escapes, (char)c) : NULL;
  if (escape) return t->bytes['\\'] && t->bytes[(unsigned char)escaped[escape - escapes]];
  if (c < 0x80) return c >= 0x20 && t->bytes[c];
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  bool good = t->bytes[(unsigned char)"\0\xC0\xE0\xF0"[more] | c >> 6 * more];
  for (int i = 0; i < more; i++) good = good && t->bytes[0x80 | (c >> 6 * i & 0x3F)];
  return good;
}

/* Can a string that matches regular expressions be completed from each state? Of characters beyond ASCII the first one
 * of a class is asked. */
static wn_status constraint_check_regular(wn_context *ctx, const struct wn_token_tree *t, const struct wn_regular *r) {
  bool written[128], again = true;
  uint32_t stuck = 0;
  for (uint32_t c = 0; c < 128; c++) written[c] = constraint_writes(t, c);
  bool *good;
  WN_TRY(WN_ALLOC(ctx, "a constraint", r->states, &good));
  memcpy(good, r->ends, r->states);
  while (again) {
    again = false;
    for (uint32_t s = r->states; s-- > WN_REGULAR_START;)
      for (uint32_t i = 0; i < r->classes && !good[s]; i++) {
        const uint32_t end = i + 1 < r->classes ? r->from[i + 1] : 0x110000;
        bool can = r->from[i] >= 128 && constraint_writes(t, r->from[i]);
        if (!good[r->next[(size_t)s * r->classes + i]]) continue;
        for (uint32_t c = r->from[i]; c < end && c < 128; c++) can = can || written[c];
        if (can) good[s] = again = true;
      }
  }
  for (uint32_t s = WN_REGULAR_START; s < r->states; s++)
    for (uint32_t i = 0; i < r->classes; i++) {
      const uint32_t to = r->next[(size_t)s * r->classes + i];
      if (to != WN_REGULAR_DEAD && !good[to]) stuck = to;
    }
  wn_free(good);
  if (!stuck) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "the tokenizer has no tokens for bytes which a regular expression of the schema needs");
}

/* Checks that each byte that may be needed to complete a text is a token. */
static wn_status constraint_check_bytes(wn_context *ctx, const struct wn_token_tree *t, const struct wn_schema *s) {
  static const unsigned char needed[] = "{}[]\":,-0123456789\\udc";
  for (const unsigned char *c = needed; *c; c++)
    if (!t->bytes[*c])
      return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the tokenizer has no token for '%c', without which it writes no JSON",
                     *c);
  for (uint32_t i = 0; i < s->text_bytes; i++)
    if (!t->bytes[s->text[i]])
      return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                     "the tokenizer has no token for the byte 0x%02x, which a name or a constant of the schema has",
                     s->text[i]);
  for (uint32_t i = 0; i < s->regular_count; i++) WN_TRY(constraint_check_regular(ctx, t, s->regulars[i]));
  return WN_OK;
}

void wn_constraint_destroy(wn_constraint *c) {
  WN_CHECK_OR(, WN_HANDLE_AS("constraint", c, CONSTRAINT));
  wn_json_machine_close(&c->machine);
  wn_schema_drop(c->schema);
  wn_free(c->allowed);
  wn_free(c);
}

/* Takes over the schema, even on failure. */
static wn_status constraint_create(wn_context *ctx, const struct wn_token_tree *tree, struct wn_schema *schema,
                                   wn_constraint **out) {
  struct wn_constraint *c;
  wn_status status = WN_ALLOC(ctx, "a constraint", 1, &c);
  if (status != WN_OK) {
    wn_schema_drop(schema);
    return status;
  }
  wn_handle_mark(c, WN_HANDLE_CONSTRAINT);
  c->tree = tree;
  c->schema = schema;
  status = WN_ALLOC(ctx, "a constraint", tree->entries, &c->allowed);
  if (status == WN_OK) status = wn_json_machine_open(ctx, schema, &c->machine);
  if (status == WN_OK)
    *out = c;
  else
    wn_constraint_destroy(c);
  return status;
}

wn_status wn_constraint_create_tree(wn_context *ctx, const struct wn_token_tree *tree, const json_t *schema,
                                    wn_constraint **out) {
  struct wn_schema *tables;
  *out = NULL;
  WN_TRY(wn_schema_create(ctx, schema, &tables));
  const wn_status status = constraint_check_bytes(ctx, tree, tables);
  if (status != WN_OK) wn_schema_drop(tables);
  return status == WN_OK ? constraint_create(ctx, tree, tables, out) : status;
}

wn_status wn_constraint_create_json(wn_context *ctx, const wn_tokenizer *tok, const char *schema, size_t bytes,
                                    wn_constraint **out) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_POINTER(out));
  const struct wn_token_tree *tree;
  json_t *json = NULL;
  *out = NULL;
  WN_TRY(wn_tokenizer_tree(ctx, tok, &tree));
  if (schema) WN_TRY(wn_json_load_text(ctx, WN_JSON_SCHEMA, "schema", schema, bytes, &json));
  const wn_status status = wn_constraint_create_tree(ctx, tree, json, out);
  json_decref(json);
  return status;
}

wn_status wn_constraint_copy(wn_context *ctx, const wn_constraint *c, wn_constraint **out) {
  WN_CHECK_CALL(WN_HANDLE_AS("constraint", c, CONSTRAINT), WN_POINTER(out));
  *out = NULL;
  return constraint_create(ctx, c->tree, wn_schema_share(c->schema), out);
}

void wn_constraint_reset(wn_constraint *c) {
  WN_CHECK_OR(, WN_HANDLE_AS("constraint", c, CONSTRAINT));
  wn_json_machine_reset(&c->machine);
}
