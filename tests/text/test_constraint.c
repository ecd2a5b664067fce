/* Constraints: random texts under random schemas parse, and are valid according to this test's own validator; valid
 * texts are accepted however they are divided into tokens; the allowed tokens are those that can be appended byte by
 * byte; unsupported keywords are named; hostile schemas cost little. */
#include "text/constraint.h"

#include <jansson.h>
#include <math.h>

#include "base/alloc.h"
#include "support.h"
#include "text/validator.h"

static wn_context *ctx;

static uint64_t seed = 88172645463325252u;
static uint32_t any(uint32_t below) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (uint32_t)((seed >> 20) % below);
}

/* --- tokens: all bytes, pieces of JSON, pieces of characters --- */

enum { END = 256, PIECES = 700 };
static char pieces[PIECES][16];
static struct wn_token_tree *tree, *bytes_tree;

static struct wn_token_tree *tree_of_pieces(int count) {
  struct wn_tree_token tokens[256 + PIECES];
  struct wn_token_tree *out;
  const int32_t end = END;
  static char single[256];
  uint32_t n = 0;
  for (int i = 0; i < 256; i++) {
    single[i] = (char)i;
    tokens[n++] = (struct wn_tree_token){&single[i], 1, i};
  }
  for (int i = 0; i < count; i++) tokens[n++] = (struct wn_tree_token){pieces[i], (uint32_t)strlen(pieces[i]), 257 + i};
  assert_ok(ctx, wn_token_tree_create(ctx, tokens, n, 257 + count, &end, 1, &out));
  return out;
}

static int setup(void **state) {
  (void)state;
  static const char *const parts[] = {"\"", "\":",      ",",        "{",       "}",      "[",   "]",    " ",
                                      "\n", "  ",       "a",        "b",       "ab",     "id",  "name", "1",
                                      "20", "-",        ".",        "e",       "tru",    "e",   "nu",   "ll",
                                      "\\", "\\n",      "\\u00",    "\\ud83d", "\\u",    "x y", "\xC3", "\xA9",
                                      "é",  "\xF0\x9F", "\x98\x80", "kind",    "\", \"", "\"}", "next", "zz"};
  enum { PARTS = sizeof parts / sizeof *parts };
  ctx = make_context();
  for (int i = 0; i < PIECES; i++) { /* some occur twice, as in real vocabularies */
    const int n = i < PARTS ? 1 : 2 + (int)any(3);
    for (int k = 0; k < n; k++) {
      const char *part = parts[i < PARTS ? (uint32_t)i : any(PARTS)];
      if (strlen(pieces[i]) + strlen(part) < sizeof pieces[i]) strcat(pieces[i], part);
    }
  }
  tree = tree_of_pieces(PIECES);
  bytes_tree = tree_of_pieces(0);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  wn_token_tree_destroy(tree);
  wn_token_tree_destroy(bytes_tree);
  wn_context_destroy(ctx);
  return 0;
}

static wn_constraint *constraint_of(const struct wn_token_tree *t, const json_t *schema) {
  wn_constraint *c;
  if (wn_constraint_create_tree(ctx, t, schema, &c) != WN_OK)
    fail_msg("%s: %s", json_dumps(schema, 0), wn_context_error(ctx));
  return c;
}

static json_t *schema_of(const char *text) {
  json_error_t error;
  json_t *json = json_loads(text, JSON_DECODE_ANY, &error);
  if (!json) fail_msg("%s: %s", text, error.text);
  return json;
}

/* --- valid values --- */

static const char *const texts[] = {"", "a", "id", "naïve", "\"q\\", "line\nend", "😀 é", "\x01", "{not}", "zz"};
enum { TEXTS = sizeof texts / sizeof *texts };

static json_t *any_value(int depth) {
  json_t *out;
  switch (any(depth > 0 ? 8 : 6)) {
  case 0:
    return json_string(texts[any(TEXTS)]);
  case 1:
    return json_integer((json_int_t)any(2000) - 1000);
  case 2:
    return json_real(((double)any(4000) - 2000) / 16);
  case 3:
    return json_real(ldexp(1 + any(9), (int)any(50) - 10)); /* without an exponent, which has many spellings */
  case 4:
    return json_boolean(any(2));
  case 5:
    return json_null();
  case 6:
    out = json_array();
    for (uint32_t n = any(4); n > 0; n--) json_array_append_new(out, any_value(depth - 1));
    return out;
  default:
    out = json_object();
    for (uint32_t n = any(4); n > 0; n--) json_object_set_new(out, texts[any(TEXTS)], any_value(depth - 1));
    return out;
  }
}

static json_t *valid_value(const json_t *root, const json_t *schema, int depth);

static json_t *valid_object(const json_t *root, const json_t *schema, int depth) {
  json_t *out = json_object(), *properties = json_object_get(schema, "properties"), *member;
  const json_t *rest = json_object_get(schema, "additionalProperties"), *required = json_object_get(schema, "required");
  const char *key;
  json_object_foreach(properties, key, member) {
    bool needed = false;
    for (size_t i = 0; i < json_array_size(required); i++)
      needed = needed || !strcmp(key, json_string_value(json_array_get(required, i)));
    if (needed || (depth > 0 && any(2))) json_object_set_new(out, key, valid_value(root, member, depth - 1));
  }
  for (uint32_t n = json_is_false(rest) || depth <= 0 ? 0 : any(3); n > 0; n--) {
    char name[16];
    snprintf(name, sizeof name, "%sx%u", any(2) ? "id" : "né", any(100));
    if (json_object_get(properties, name) || json_object_get(out, name)) continue;
    json_object_set_new(out, name, rest ? valid_value(root, rest, depth - 1) : any_value(1));
  }
  return out;
}

static json_t *valid_array(const json_t *root, const json_t *schema, int depth) {
  const json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
  const json_int_t min = json_integer_value(json_object_get(schema, "minItems"));
  const json_t *max = json_object_get(schema, "maxItems");
  json_t *out = json_array();
  json_int_t n = min + (depth > 0 ? any(3) : 0);
  if (max && n > json_integer_value(max)) n = json_integer_value(max);
  if (json_is_false(items) && n > (json_int_t)json_array_size(prefix)) n = (json_int_t)json_array_size(prefix);
  for (json_int_t i = 0; i < n; i++) {
    const json_t *own = i < (json_int_t)json_array_size(prefix) ? json_array_get(prefix, (size_t)i) : items;
    json_array_append_new(out, own ? valid_value(root, own, depth - 1) : any_value(1));
  }
  return out;
}

static json_t *valid_of_type(const json_t *root, const json_t *schema, const char *type, int depth) {
  char text[64] = "";
  if (!strcmp(type, "object")) return valid_object(root, schema, depth);
  if (!strcmp(type, "array")) return valid_array(root, schema, depth);
  if (!strcmp(type, "boolean")) return json_boolean(any(2));
  if (!strcmp(type, "null")) return json_null();
  if (!strcmp(type, "number") || !strcmp(type, "integer")) {
    const json_t *low = json_object_get(schema, "minimum"), *high = json_object_get(schema, "maximum");
    const json_int_t least = low    ? (json_int_t)json_number_value(low)
                             : high ? (json_int_t)json_number_value(high) - 300
                                    : -200;
    const double value = (double)least + (!strcmp(type, "integer") ? any(300) : any(4800) / 16.0);
    return floor(value) == value ? json_integer((json_int_t)value) : json_real(value);
  }
  if (json_object_get(schema, "pattern") && any(3)) {
    static const char *const samples[] = {"a", "aab",  "idab", "[]", "\n",  "\"\n\"",
                                          "é", "\\\\", "öà",   "😀😀", "a_1", "zzz"};
    return json_string(samples[any(12)]);
  }
  const json_t *min = json_object_get(schema, "minLength"), *max = json_object_get(schema, "maxLength");
  int64_t n = json_integer_value(min) + any(4);
  if (max && n > json_integer_value(max)) n = json_integer_value(max);
  while (n-- > 0) strcat(text, any(3) ? "a" : any(2) ? "😀" : "\n");
  return json_string(text);
}

static json_t *valid_value(const json_t *root, const json_t *schema, int depth) {
  schema = target_of(root, schema);
  const json_t *type = json_object_get(schema, "type"), *among = json_object_get(schema, "enum");
  const json_t *one = json_object_get(schema, "const"), *any_of = json_object_get(schema, "anyOf");
  const json_t *all_of = json_object_get(schema, "allOf");
  if (one) return json_incref((json_t *)(uintptr_t)one);
  if (among) return json_incref(json_array_get(among, any((uint32_t)json_array_size(among))));
  if (any_of) /* the last alternative ends a recursion */
    return valid_value(
        root, json_array_get(any_of, depth > 0 ? any((uint32_t)json_array_size(any_of)) : json_array_size(any_of) - 1),
        depth - 1);
  if (all_of) return valid_value(root, json_array_get(all_of, any((uint32_t)json_array_size(all_of))), depth - 1);
  if (json_is_array(type)) type = json_array_get(type, any((uint32_t)json_array_size(type)));
  if (!type && json_object_get(schema, "properties")) return valid_object(root, schema, depth);
  return type ? valid_of_type(root, schema, json_string_value(type), depth) : any_value(2);
}

/* --- schemas --- */

static json_t *any_schema(int depth);

static json_t *any_object_schema(int depth) {
  static const char *const names[] = {"id", "i", "idx", "name", "née", "a\"b", "", "kind"};
  json_t *out = json_pack("{s:s}", "type", "object"), *properties = json_object(), *required = json_array();
  for (uint32_t n = any(5); n > 0; n--) {
    const char *name = names[any(8)];
    if (json_object_get(properties, name)) continue;
    json_object_set_new(properties, name, any_schema(depth - 1));
    if (any(2)) json_array_append_new(required, json_string(name));
  }
  json_object_set_new(out, "properties", properties);
  json_object_set_new(out, "required", required);
  if (any(3)) json_object_set_new(out, "additionalProperties", any(2) ? json_false() : any_schema(depth - 1));
  return out;
}

static json_t *any_array_schema(int depth) {
  json_t *out = json_pack("{s:s}", "type", "array");
  const int min = (int)any(3), prefix = (int)any(3);
  if (any(3)) json_object_set_new(out, "items", any_schema(depth - 1));
  if (any(2)) json_object_set_new(out, "minItems", json_integer(min));
  if (any(2)) json_object_set_new(out, "maxItems", json_integer(min + (int)any(3)));
  if (any(3) == 0) {
    json_t *list = json_array();
    for (int i = 0; i < prefix; i++) json_array_append_new(list, any_schema(depth - 1));
    json_object_set_new(out, "prefixItems", list);
  }
  return out;
}

static const char *const patterns[] = {"a",      "^a*b?$",  "^(ab|id)+$", "^[^\"a-c]*$", "^\n.\"$",   "^.{1,3}$",
                                       "x|^$|é", "^\\\\+$", "^[à-ö😀]{2}", "^\\w+\\d$",   "(a|zz)?z$", "^id"};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

static json_t *any_bounds(json_t *out, double low, double width) {
  const bool whole = floor(low) == low && floor(width) == width;
  static const double multiples[] = {1, 3, 7, 10, 0.5, 0.25, 1.5};
  if (any(2))
    json_object_set_new(out, any(2) ? "minimum" : "exclusiveMinimum", whole ? json_integer((int)low) : json_real(low));
  if (any(2)) json_object_set_new(out, any(2) ? "maximum" : "exclusiveMaximum", json_real(low + width));
  if (any(3) == 0) json_object_set_new(out, "multipleOf", json_real(multiples[any(7)]));
  return out;
}

/* Schemas that hold together, in one of the spellings. */
static json_t *any_together(int depth) {
  json_t *out, *one = json_pack("{s:o, s:o}", "properties",
                                json_pack("{s:o, s:o}", "id", any_schema(depth - 1), "k", any_schema(0)), "required",
                                any(2) ? json_pack("[s]", "id") : json_array());
  json_t *two = any(2)   ? json_pack("{s:o, s:b}", "properties", json_pack("{s:o, s:{}}", "id", any_schema(0), "x"),
                                     "additionalProperties", (int)any(2))
                : any(2) ? json_pack("{s:s}", "$ref", "#/$defs/node")
                         : json_pack("{s:i, s:s}", "minLength", 1, "type", any(2) ? "object" : "string");
  if (any(2)) return json_pack("{s:[o, o]}", "allOf", one, two);
  out = json_pack("{s:[o, o]}", any(2) ? "allOf" : "anyOf", one, two);
  if (any(2)) json_object_set_new(out, "required", json_pack("[s]", any(2) ? "id" : "x"));
  if (any(2)) json_object_set_new(out, "type", json_string("object"));
  return out;
}

static json_t *any_schema(int depth) {
  json_t *out;
  const int low = (int)any(400) - 200, min = (int)any(4);
  switch (any(depth > 0 ? 14 : 9)) {
  case 0:
    out = json_pack("{s:s}", "type", "string");
    if (any(2)) json_object_set_new(out, "minLength", json_integer(min));
    if (any(2)) json_object_set_new(out, "maxLength", json_integer(min + (int)any(5)));
    if (any(2)) json_object_set_new(out, "pattern", json_string(patterns[any(PATTERNS)]));
    return out;
  case 1:
    if (any(3) == 0) return json_pack("{s:s}", "type", "boolean");
    return any_bounds(json_pack("{s:s}", "type", "number"), low / 8.0, any(300) / 16.0);
  case 2:
    return any_bounds(json_pack("{s:s}", "type", "integer"), low, any(300));
  case 3:
    out = json_array();
    for (uint32_t n = 1 + any(5); n > 0; n--) json_array_append_new(out, any_value(any(3) ? 0 : 2));
    return json_pack("{s:o}", "enum", out);
  case 4:
    return json_pack("{s:o}", "const", any_value(any(2) ? 0 : 2));
  case 5:
    return json_pack("{s:[s,s,s]}", "type", "null", "string", any(2) ? "integer" : "number");
  case 6:
    return json_pack("{s:s}", "$ref", "#/$defs/node");
  case 7:
    return any(3) ? json_pack("{s:s}", "type", "null") : json_object();
  case 8:
    return json_pack("{s:s}", "$ref", "#/$defs/kinds");
  case 9:
    out = json_array();
    for (uint32_t n = 1 + any(3); n > 0; n--) json_array_append_new(out, any_schema(depth - 1));
    json_array_append_new(out, json_pack("{s:s}", "type", "null"));
    return json_pack("{s:o}", "anyOf", out);
  case 10:
    return any_array_schema(depth);
  case 11:
    return any_together(depth);
  default:
    return any_object_schema(depth);
  }
}

/* With a list that refers to itself, and objects that only their contents tell apart. */
static json_t *any_root(void) {
  json_t *out = any_schema(3);
  json_t *defs = json_pack(
      "{s:{s:s,s:{s:{s:s},s:{s:[{s:s},{s:s}]}},s:[s],s:b},s:{s:[{s:s,s:{s:{s:s},s:{s:s}},s:[s,s],s:b},{s:s,s:{s:{s:s},"
      "s:{s:s}},s:[s,s],s:b},{s:s}]}}",
      "node", "type", "object", "properties", "id", "type", "integer", "next", "anyOf", "$ref", "#/$defs/node", "type",
      "null", "required", "id", "additionalProperties", 0, "kinds", "anyOf", "type", "object", "properties", "kind",
      "const", "a", "x", "type", "number", "required", "kind", "x", "additionalProperties", 0, "type", "object",
      "properties", "kind", "const", "ab", "x", "type", "string", "required", "kind", "x", "additionalProperties", 0,
      "type", "null");
  assert_non_null(defs);
  json_object_set_new(out, "$defs", defs);
  return out;
}

/* --- random texts --- */

struct text {
  char data[1 << 15];
  size_t bytes;
};

static bool append(struct text *t, const struct wn_token_tree *tokens, int32_t id) {
  const uint32_t n = tokens->at[id + 1] - tokens->at[id];
  if (t->bytes + n >= sizeof t->data) return false;
  memcpy(t->data + t->bytes, tokens->text + tokens->at[id], n);
  t->data[t->bytes += n] = 0;
  return true;
}

/* Picks an allowed token: any, or one that closes something, so that the text ends. */
static int32_t choose(const uint8_t *allowed, bool closing) {
  static const unsigned char closers[] = "\"adxz}]:0"; /* letters for patterns */
  int32_t list[257 + PIECES];
  uint32_t n = 0;
  if (closing && allowed[END]) return END;
  for (int i = 0; closing && closers[i]; i++)
    if (allowed[closers[i]] && any(i < 5 ? 2 : 8)) return closers[i];
  for (int32_t id = 0; id < tree->entries; id++) {
    const bool blank = id == ' ' || id == '\n' || id == '\t';
    if (allowed[id] && !(closing && (blank || id > 256 || id == ',' || id == '[' || id == '{')) && !(blank && any(4)))
      list[n++] = id;
  }
  for (int32_t id = 0; n == 0 && id < tree->entries; id++)
    if (allowed[id]) return id;
  return n ? list[any(n)] : -1;
}

/* Checks that exactly the tokens that continue the text are allowed, with a constraint over single bytes from the
 * start. */
static void check_allowed(const json_t *schema, const struct text *t, const uint8_t *allowed) {
  wn_constraint *c = constraint_of(bytes_tree, schema);
  for (int32_t id = 0; id < tree->entries; id++) {
    struct text longer = *t;
    bool taken = id != END && append(&longer, tree, id);
    wn_constraint_reset(c);
    for (size_t i = 0; i < longer.bytes && taken; i++)
      taken = wn_constraint_accept(ctx, c, (unsigned char)longer.data[i]) == WN_OK;
    if (id == END) taken = wn_constraint_accept(ctx, c, END) == WN_OK || wn_constraint_is_complete(c);
    if (id == END) {
      wn_constraint_reset(c);
      for (size_t i = 0; i < t->bytes; i++) assert_ok(ctx, wn_constraint_accept(ctx, c, (unsigned char)t->data[i]));
      taken = wn_constraint_is_complete(c);
    }
    if (taken != allowed[id])
      fail_msg("%s: after %s token %d (%.*s) is %sallowed", json_dumps(schema, 0), t->data, id,
               (int)(tree->at[id + 1] - tree->at[id]), tree->text + tree->at[id], allowed[id] ? "" : "not ");
  }
  wn_constraint_destroy(c);
}

static void walk(const json_t *schema, wn_constraint *c, int until, bool checks) {
  static struct text t;
  json_error_t error;
  t.bytes = 0;
  t.data[0] = 0;
  wn_constraint_reset(c);
  for (int i = 0;; i++) {
    const uint8_t *allowed = wn_constraint_allowed(c);
    assert_non_null(allowed);
    if (checks && t.bytes < 150 && any(8) == 0) check_allowed(schema, &t, allowed);
    const int32_t id = choose(allowed, i >= until);
    if (id < 0 || i > 30000) fail_msg("%s: nothing goes on after %s", json_dumps(schema, 0), t.data);
    assert_ok(ctx, wn_constraint_accept(ctx, c, id));
    if (id == END) break;
    assert_true(append(&t, tree, id));
  }
  json_t *value = json_loadb(t.data, t.bytes, JSON_DECODE_ANY, &error);
  if (!value) fail_msg("%s: %s: %s", json_dumps(schema, 0), t.data, error.text);
  if (schema && !is_valid(schema, schema, value)) fail_msg("%s: not valid: %s", json_dumps(schema, 0), t.data);
  if (!schema) assert_true(json_is_object(value));
  json_decref(value);
}

static json_t *satisfiable_root(wn_constraint **c) {
  for (;;) {
    json_t *schema = any_root();
    const wn_status status = wn_constraint_create_tree(ctx, tree, schema, c);
    if (status == WN_OK) return schema;
    const char *said = wn_context_error(ctx);
    if (!strstr(said, "no value fits") && !strstr(said, "with anything but") && !strstr(said, "hold together"))
      fail_msg("%s: %s", json_dumps(schema, 0), wn_context_error(ctx));
    json_decref(schema);
  }
}

static void test_random_texts(void **state) {
  (void)state;
  for (int i = 0; i < 600; i++) {
    wn_constraint *c;
    json_t *schema = satisfiable_root(&c);
    for (int k = 0; k < 5; k++) walk(schema, c, 2 + (int)any(60), false);
    wn_constraint_destroy(c);
    json_decref(schema);
  }
  wn_constraint *c = constraint_of(tree, NULL);
  for (int i = 0; i < 300; i++) walk(NULL, c, (int)any(120), false);
  wn_constraint_destroy(c);
}

static void test_allowed(void **state) {
  (void)state;
  for (int i = 0; i < 60; i++) {
    wn_constraint *c;
    json_t *schema = satisfiable_root(&c);
    walk(schema, c, 2 + (int)any(25), true);
    wn_constraint_destroy(c);
    json_decref(schema);
  }
  /* Inside an escape, with about as many characters left as a byte can count. */
  for (int most = 250; most < 260; most++) {
    json_t *schema = json_pack("{s:s,s:i}", "type", "string", "maxLength", most);
    wn_constraint *c = constraint_of(tree, schema);
    const struct text begun = {.data = "\"\\", .bytes = 2};
    for (size_t i = 0; i < begun.bytes; i++) assert_ok(ctx, wn_constraint_accept(ctx, c, begun.data[i]));
    check_allowed(schema, &begun, wn_constraint_allowed(c));
    wn_constraint_destroy(c);
    json_decref(schema);
  }
}

/* Feeds the text as random tokens, each drawn from those that continue it. */
static void take(const json_t *schema, wn_constraint *c, const char *text) {
  const size_t bytes = strlen(text);
  wn_constraint_reset(c);
  for (size_t at = 0; at < bytes;) {
    int32_t id = (unsigned char)text[at];
    for (int tries = 0; tries < 40; tries++) {
      const int32_t other = 257 + (int32_t)any(PIECES);
      const size_t n = strlen(pieces[other - 257]);
      if (n <= bytes - at && !memcmp(text + at, pieces[other - 257], n)) id = other;
    }
    if (wn_constraint_accept(ctx, c, id) != WN_OK)
      fail_msg("%s: %s is refused at byte %zu", schema ? json_dumps(schema, 0) : "any object", text, at);
    at += tree->at[id + 1] - tree->at[id];
  }
  if (!wn_constraint_is_complete(c)) fail_msg("%s: %s is not complete", json_dumps(schema, 0), text);
}

static void test_valid_texts(void **state) {
  (void)state;
  for (int i = 0; i < 800; i++) {
    wn_constraint *c;
    json_t *schema = satisfiable_root(&c);
    for (int k = 0; k < 4; k++) {
      json_t *value = valid_value(schema, schema, 4);
      if (is_valid(schema, schema, value)) { /* a list's bounds may contradict its elements' */
        char *text = json_dumps(value, JSON_ENCODE_ANY | (k % 2 ? JSON_COMPACT : JSON_INDENT(k)));
        take(schema, c, text);
        free(text);
      }
      json_decref(value);
    }
    wn_constraint_destroy(c);
    json_decref(schema);
  }
}

/* --- texts written by hand --- */

static bool taken(const char *schema, const char *text) {
  json_t *json = schema ? schema_of(schema) : NULL;
  wn_constraint *c = constraint_of(bytes_tree, json);
  bool ok = true;
  for (const char *at = text; *at && ok; at++) ok = wn_constraint_accept(ctx, c, (unsigned char)*at) == WN_OK;
  ok = ok && wn_constraint_is_complete(c);
  wn_constraint_destroy(c);
  json_decref(json);
  return ok;
}

static void test_texts(void **state) {
  (void)state;
  static const struct {
    const char *schema, *text;
    bool ok;
  } rows[] = {
      {NULL, "{}", true},
      {NULL, " {\"a\": [1, -2.5e+10, true, null, {\"b\": \"\\u00e9\"}]}", true},
      {NULL, "{} ", false}, /* no text may follow */
      {NULL, "[]", false},
      {NULL, "{\"a\": 01}", false},
      {NULL, "{\"a\": 1.}", false},
      {NULL, "{\"a\": 1e400}", false},
      {NULL, "{\"a\": 1234567890123456789}", false},
      {NULL, "{\"a\": \"\\u0000\"}", false},
      {NULL, "{\"a\": \"\\ud83d\\ude00\"}", true},
      {NULL, "{\"a\": \"\\ud83d\"}", false},
      {NULL, "{\"a\": \"\\ude00\"}", false},
      {NULL, "{\"a\": \"\xC3\"}", false},
      {NULL, "{\"a\": \"\xED\xA0\x80\"}", false},
      {NULL, "{\"a\": \"\n\"}", false},
      {NULL, "{\"a\": 1,}", false},
      {NULL, "{\n\n          \"a\"  : 1}", false}, /* two blank lines */
      {NULL, "{\n\n          \"a\" : 1}", true},
      {NULL, "{\n\n\n\"a\":1}", false},
      {"{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 12}", "-3", true},
      {"{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 12}", "-4", false},
      {"{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 12}", "12", true},
      {"{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 12}", "13", false},
      {"{\"type\": \"integer\", \"exclusiveMinimum\": 9, \"exclusiveMaximum\": 11}", "10", true},
      {"{\"type\": \"integer\", \"exclusiveMinimum\": 9, \"exclusiveMaximum\": 11}", "9", false},
      {"{\"type\": \"integer\", \"minimum\": 1.5}", "1", false},
      {"{\"type\": \"integer\", \"minimum\": 1.5}", "2", true},
      {"{\"type\": \"integer\"}", "1.0", false},
      {"{\"enum\": [1, 12, \"1\", [1, {\"a\": null}]]}", "12", true},
      {"{\"enum\": [1, 12, \"1\", [1, {\"a\": null}]]}", "1", true},
      {"{\"enum\": [1, 12, \"1\", [1, {\"a\": null}]]}", "[1, {\"a\": null}]", true},
      {"{\"enum\": [1, 12, \"1\", [1, {\"a\": null}]]}", "[1, {}]", false},
      {"{\"type\": \"string\", \"enum\": [1, \"a\"]}", "1", false},
      {"{\"type\": \"string\", \"maxLength\": 2}", "\"\xF0\x9F\x98\x80\\u00e9\"", true},
      {"{\"type\": \"string\", \"maxLength\": 2}", "\"abc\"", false},
      {"{\"type\": \"integer\", \"exclusiveMinimum\": 1e16}", "10000000000000000", false},
      {"{\"type\": \"integer\", \"exclusiveMinimum\": 1e16}", "10000000000000001", true},
      {"{\"type\": \"integer\", \"exclusiveMaximum\": -1e16}", "-10000000000000000", false},
      {"{\"type\": \"integer\", \"exclusiveMaximum\": -1e16}", "-10000000000000001", true},
      {"{\"type\": \"integer\", \"exclusiveMinimum\": 1.5, \"exclusiveMaximum\": 2.5}", "2", true},
      {"{\"type\": \"string\", \"minLength\": 2}", "\"\\ud83d\\ude00\"", false},
      {"{\"properties\": {\"a\": {}, \"b\": {}}, \"required\": [\"b\"]}", "{\"a\":1,\"b\":2,\"c\":3}", true},
      {"{\"properties\": {\"a\": {}, \"b\": {}}, \"required\": [\"b\"]}", "{\"b\":2,\"a\":1}", false}, /* the order */
      {"{\"properties\": {\"a\": {}, \"b\": {}}, \"required\": [\"b\"]}", "{\"a\":2}", false},
      {"{\"properties\": {\"ab\": {\"type\": \"null\"}}}", "{\"a\": 1, \"abc\": 2}", true},
      {"{\"properties\": {\"ab\": {\"type\": \"null\"}}}", "{\"ab\": 1}", false},
      {"{\"properties\": {\"ab\": {\"type\": \"null\"}}}", "{\"\\u0061b\": 1}", false}, /* the same name, escaped */
      {"{\"properties\": {\"a\": {}}, \"required\": [\"z\"]}", "{\"a\":1,\"z\":[]}", true},
      {"{\"properties\": {\"a\": {}}, \"required\": [\"z\"]}", "{\"a\":1}", false},
      {"{\"prefixItems\": [{\"type\": \"null\"}, {\"const\": 5}], \"items\": false}", "[null,5]", true},
      {"{\"prefixItems\": [{\"type\": \"null\"}, {\"const\": 5}], \"items\": false}", "[null,5,6]", false},
      {"{\"type\": \"array\", \"minItems\": 1, \"maxItems\": 2}", "[]", false},
      {"{\"type\": \"array\", \"minItems\": 1, \"maxItems\": 2}", "[[],{}]", true},
      {"{\"type\": \"array\", \"minItems\": 1, \"maxItems\": 2}", "[1,2,3]", false},
      {"{\"pattern\": \"^[^a]$\"}", "\"\\\"\"", true},
      {"{\"pattern\": \"^[^a]$\"}", "\"\\\\\"", true},
      {"{\"pattern\": \"^[^a]$\"}", "\"\xF0\x9F\x98\x80\"", true},
      {"{\"pattern\": \"^[^a]$\"}", "\"\\u0062\"", false}, /* an escape that is not needed */
      {"{\"pattern\": \"^[^a]$\"}", "\"a\"", false},
      {"{\"pattern\": \"^[^a]$\"}", "\"\"", false},
      {"{\"pattern\": \"b\"}", "\"abc\\n\"", true},
      {"{\"pattern\": \"\\\\.\"}", "\"a\"", false},
      {"{\"pattern\": \"\\\\u00e9\\\\x41\"}", "\"\xC3\xA9\x41\"", true},
      {"{\"pattern\": \"^a\", \"maxLength\": 2}", "\"abc\"", false},
      {"{\"pattern\": \"^a\", \"maxLength\": 2}", "\"ab\"", true},
      {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}", "0.25", true},
      {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}", "1.00", true},
      {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}", "1.01", false},
      {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}", "-0.5", false},
      {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}", "1e-1", false}, /* no exponents */
      {"{\"type\": \"number\", \"exclusiveMinimum\": 0}", "0.0", false},
      {"{\"type\": \"number\", \"exclusiveMinimum\": 0}", "0.001", true},
      {"{\"type\": \"number\", \"exclusiveMaximum\": 0.1}", "0.1", false},
      {"{\"type\": \"number\", \"exclusiveMaximum\": 0.1}", "0.09", true},
      {"{\"type\": \"number\", \"exclusiveMaximum\": 0.1}", "-123456", true},
      {"{\"type\": \"number\", \"multipleOf\": 0.01}", "12.34", true},
      {"{\"type\": \"number\", \"multipleOf\": 0.01}", "12.345", false},
      {"{\"type\": \"number\", \"multipleOf\": 0.01, \"maximum\": 100000000000000000}", "5.25", true},
      {"{\"type\": \"number\", \"multipleOf\": 0.01, \"maximum\": 2}", "2.01", false},
      {"{\"type\": \"integer\", \"multipleOf\": 1.5}", "6", true},
      {"{\"type\": \"integer\", \"multipleOf\": 1.5}", "4", false},
      {"{\"type\": \"integer\", \"multipleOf\": 7, \"minimum\": -20, \"maximum\": 20}", "-14", true},
      {"{\"type\": \"integer\", \"multipleOf\": 7, \"minimum\": -20, \"maximum\": 20}", "-1", false},
      {"{\"type\": \"integer\", \"multipleOf\": 7, \"minimum\": -20, \"maximum\": 20}", "0", true},
      {"{\"allOf\": [{\"minimum\": 2}, {\"maximum\": 4, \"type\": \"integer\"}]}", "3", true},
      {"{\"allOf\": [{\"minimum\": 2}, {\"maximum\": 4, \"type\": \"integer\"}]}", "5", false},
      {"{\"allOf\": [{\"pattern\": \"^a\"}, {\"pattern\": \"b$\"}]}", "\"axb\"", true},
      {"{\"allOf\": [{\"pattern\": \"^a\"}, {\"pattern\": \"b$\"}]}", "\"ax\"", false},
      {"{\"allOf\": [{\"multipleOf\": 4}, {\"multipleOf\": 6}], \"type\": \"integer\"}", "12", true},
      {"{\"allOf\": [{\"multipleOf\": 4}, {\"multipleOf\": 6}], \"type\": \"integer\"}", "18", false},
      {"{\"allOf\": [{\"enum\": [1, \"a\", null]}, {\"enum\": [\"a\", 2]}]}", "\"a\"", true},
      {"{\"allOf\": [{\"enum\": [1, \"a\", null]}, {\"enum\": [\"a\", 2]}]}", "null", false},
      {"{\"properties\": {\"a\": {}}, \"anyOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}]}", "{\"b\":1}",
       true},
      {"{\"properties\": {\"a\": {}}, \"anyOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}]}", "{}", false},
      {"{\"$defs\": {\"n\": {\"type\": \"integer\"}}, \"$ref\": \"#/$defs/n\", \"minimum\": 5}", "4", false},
      {"{\"$defs\": {\"n\": {\"type\": \"integer\"}}, \"$ref\": \"#/$defs/n\", \"minimum\": 5}", "5", true},
      {"{\"allOf\": [{\"$ref\": \"#/definitions/x~1y\"}], \"definitions\": {\"x/y\": {\"type\": \"null\"}}}", "null",
       true},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (taken(rows[i].schema, rows[i].text) != rows[i].ok)
      fail_msg("%s: %s should be %s", rows[i].schema ? rows[i].schema : "any object", rows[i].text,
               rows[i].ok ? "taken" : "refused");
}

/* As deep as a text may be, and no deeper: close to the limit, only values that still fit are allowed. */
static void test_depth(void **state) {
  (void)state;
  char text[4 * WN_SCHEMA_DEPTH + 8];
  for (int depth = WN_SCHEMA_DEPTH; depth <= WN_SCHEMA_DEPTH + 1; depth++) {
    text[0] = 0;
    for (int i = 1; i < depth; i++) strcat(text, i == 1 ? "{\"a\":" : "[");
    strcat(text, "[]");
    for (int i = depth - 1; i > 0; i--) strcat(text, i == 1 ? "}" : "]");
    assert_int_equal(taken(NULL, text), depth == WN_SCHEMA_DEPTH);
  }
  /* A value that needs more levels than are left is not started. */
  json_t *schema =
      schema_of("{\"$defs\": {\"n\": {\"properties\": {\"n\": {\"$ref\": \"#/$defs/n\"}, \"leaf\": "
                "{\"items\": {\"items\": {\"items\": {}, \"minItems\": 1}, \"minItems\": 1}, \"minItems\": "
                "1}}, \"required\": [\"leaf\"], \"additionalProperties\": false}}, \"$ref\": \"#/$defs/n\"}");
  wn_constraint *c = constraint_of(tree, schema);
  for (int i = 0; i < 20; i++) walk(schema, c, 1 << 14, false);
  wn_constraint_destroy(c);
  json_decref(schema);
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *schema, *says;
    wn_status status;
  } rows[] = {
      {"{\"pattern\": \"(?=a)\"}",
       "schema #/pattern: the regular expression \"(?=a)\" has a group (?=", WN_ERR_UNSUPPORTED},
      {"{\"pattern\": \"(a)\\\\1\"}", "a reference to a group (\\1)", WN_ERR_UNSUPPORTED},
      {"{\"pattern\": \"\\\\bx\"}", "the edge of a word (\\b)", WN_ERR_UNSUPPORTED},
      {"{\"pattern\": \"\\\\p{L}\"}", "a property of characters (\\p)", WN_ERR_UNSUPPORTED},
      {"{\"pattern\": \"a)\"}", "a ')' that ends no group", WN_ERR_FORMAT},
      {"{\"pattern\": \"(a\"}", "a group without an end", WN_ERR_FORMAT},
      {"{\"pattern\": \"[a\"}", "a class without an end", WN_ERR_FORMAT},
      {"{\"pattern\": \"[b-a]\"}", "whose end comes before", WN_ERR_FORMAT},
      {"{\"pattern\": \"*a\"}", "'*' after nothing", WN_ERR_FORMAT},
      {"{\"pattern\": \"a{2,1}\"}", "most is below its least", WN_ERR_FORMAT},
      {"{\"pattern\": \"\\\\uZZZZ\"}", "an escape that is no character", WN_ERR_FORMAT},
      {"{\"pattern\": [\"a\"]}", "schema #/pattern: expected a text", WN_ERR_FORMAT},
      {"{\"pattern\": \"((a{9}){99}){99}\"}", "more than 8192 parts", WN_ERR_UNSUPPORTED},
      {"{\"pattern\": \"^[ab]*a[ab]{15}$\"}", "states", WN_ERR_UNSUPPORTED},
      {"{\"pattern\": \"^a$\", \"minLength\": 2}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"pattern\": \"a\\\\u0001\"}", "no value fits", WN_ERR_UNSUPPORTED}, /* written as an escape only */
      {"{\"properties\": {\"a\": {\"items\": {\"format\": \"x\"}}}}", "schema #/properties/a/items/format: \"x\"",
       WN_ERR_UNSUPPORTED},
      {"{\"type\": \"number\", \"multipleOf\": 0}", "schema #/multipleOf: expected a number above 0", WN_ERR_FORMAT},
      {"{\"type\": \"number\", \"multipleOf\": 1e-20}", "more than 15 digits", WN_ERR_UNSUPPORTED},
      {"{\"type\": \"number\", \"minimum\": 1, \"exclusiveMaximum\": 1}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 6, \"multipleOf\": 7}", "no value fits",
       WN_ERR_UNSUPPORTED},
      {"{\"anyOf\": [{}, {\"oneOf\": []}]}", "schema #/anyOf/1: \"oneOf\"", WN_ERR_UNSUPPORTED},
      {"{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"allOf\": [{\"not\": {}}, {\"not\": {}}]}", "\"not\" of schemas that hold together", WN_ERR_UNSUPPORTED},
      {"{\"allOf\": [{\"multipleOf\": 0.4}, {\"multipleOf\": 0.6}]}", "\"multipleOf\" of schemas", WN_ERR_UNSUPPORTED},
      {"{\"allOf\": [{\"$ref\": \"#\"}, {}]}", "more than 64 schemas that hold together", WN_ERR_UNSUPPORTED},
      {"{\"allOf\": [{}, 1]}", "expected schemas", WN_ERR_FORMAT},
      {"{\"$ref\": \"http://a/b\"}", "schema #/$ref", WN_ERR_UNSUPPORTED},
      {"{\"$ref\": \"#/$defs/a\"}", "schema #/$ref", WN_ERR_UNSUPPORTED},
      {"{\"$defs\": {\"a\": {\"not\": {}}}, \"$ref\": \"#/$defs/a\"}", "schema #/$defs/a: \"not\"", WN_ERR_UNSUPPORTED},
      {"{\"type\": \"text\"}", "schema #/type: expected object, array", WN_ERR_FORMAT},
      {"{\"type\": []}", "schema #/type", WN_ERR_FORMAT},
      {"{\"enum\": []}", "schema #/enum: expected a list", WN_ERR_FORMAT},
      {"{\"enum\": [1], \"minLength\": 1}", "\"enum\" with anything but \"type\"", WN_ERR_UNSUPPORTED},
      {"{\"required\": [1]}", "schema #/required", WN_ERR_FORMAT},
      {"{\"required\": \"a\"}", "schema #/required", WN_ERR_FORMAT},
      {"{\"properties\": []}", "schema #/properties", WN_ERR_FORMAT},
      {"{\"items\": [{}]}", "schema #/items: expected a schema", WN_ERR_FORMAT},
      {"{\"minItems\": -1}", "schema #/minItems", WN_ERR_FORMAT},
      {"{\"minLength\": 1.5}", "schema #/minLength", WN_ERR_FORMAT},
      {"{\"type\": \"integer\", \"minimum\": \"1\"}", "schema #/minimum", WN_ERR_FORMAT},
      {"{\"properties\": {\"a\": 1}}", "schema #/properties/a: expected a schema", WN_ERR_FORMAT},
      /* no value fits */
      {"{\"minimum\": 1e300}", "no value fits", WN_ERR_UNSUPPORTED}, /* beyond 18 digits */
      {"{\"$ref\": \"#\"}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"items\": {\"$ref\": \"#\"}, \"minItems\": 1}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"required\": [\"a\"], \"additionalProperties\": false}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 1}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"type\": \"integer\", \"minimum\": 2, \"maximum\": 1}", "no value fits", WN_ERR_UNSUPPORTED},
      {"{\"type\": \"null\", \"const\": 1}", "no value fits", WN_ERR_UNSUPPORTED},
  };
  wn_constraint *c;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    json_t *schema = schema_of(rows[i].schema);
    assert_refused(ctx, wn_constraint_create_tree(ctx, tree, schema, &c), rows[i].status, rows[i].says);
    assert_null(c);
    json_decref(schema);
  }
}

/* --- hostile schemas --- */

/* Objects that differ only at their ends, so all alternatives are followed: without care their number would double with
 * each level. */
static void test_doubling(void **state) {
  (void)state;
  json_t *list = json_array();
  for (int i = 0; i < WN_SCHEMA_ALTERNATIVES - 1; i++)
    json_array_append_new(list, json_pack("{s:{s:{s:s},s:{s:i}},s:[s],s:b}", "properties", "a", "$ref", "#", "b",
                                          "const", i, "required", "a", "additionalProperties", 0));
  json_array_append_new(list, json_pack("{s:s}", "type", "null"));
  json_t *schema = json_pack("{s:o}", "anyOf", list);
  wn_constraint *c = constraint_of(tree, schema);
  for (int i = 0; i < 3; i++) walk(schema, c, 40, false);
  wn_constraint_destroy(c);
  json_decref(schema);
}

static void test_hostile(void **state) {
  (void)state;
  wn_constraint *c;
  json_t *list = json_array(), *deep = json_object(), *chain = json_object(), *defs = json_object();
  for (int i = 0; i <= WN_SCHEMA_ALTERNATIVES; i++) json_array_append_new(list, json_pack("{s:i}", "const", i));
  json_t *schema = json_pack("{s:o}", "anyOf", list);
  assert_refused(ctx, wn_constraint_create_tree(ctx, tree, schema, &c), WN_ERR_UNSUPPORTED, "at most 64");
  json_decref(schema);
  for (int i = 0; i < 2000; i++) deep = json_pack("{s:o}", "items", deep);
  assert_refused(ctx, wn_constraint_create_tree(ctx, tree, deep, &c), WN_ERR_UNSUPPORTED, "nested deeper");
  json_decref(deep);
  /* A chain of references is as deep as its schemas. */
  for (int i = 0; i < 3000; i++) {
    char from[32], to[32];
    snprintf(from, sizeof from, "d%d", i);
    snprintf(to, sizeof to, "#/$defs/d%d", i + 1);
    json_object_set_new(defs, from, json_pack("{s:s}", "$ref", to));
  }
  json_object_set_new(defs, "d3000", json_pack("{s:s}", "type", "null"));
  json_object_set_new(chain, "$defs", defs);
  json_object_set_new(chain, "$ref", json_string("#/$defs/d0"));
  assert_refused(ctx, wn_constraint_create_tree(ctx, tree, chain, &c), WN_ERR_UNSUPPORTED, "nested deeper");
  json_decref(chain);
  /* A great many properties, all optional. */
  json_t *properties = json_object();
  for (int i = 0; i < 5000; i++) {
    char name[32];
    snprintf(name, sizeof name, "p%d", i);
    json_object_set_new(properties, name, json_object());
  }
  schema = json_pack("{s:o}", "properties", properties);
  c = constraint_of(tree, schema);
  walk(schema, c, 30, false);
  wn_constraint_destroy(c);
  json_decref(schema);
  schema =
      json_pack("{s:s,s:I,s:I}", "type", "array", "minItems", (json_int_t)1 << 50, "maxItems", (json_int_t)1 << 60);
  c = constraint_of(tree, schema);
  assert_ok(ctx, wn_constraint_accept(ctx, c, '['));
  wn_constraint_destroy(c);
  json_decref(schema);
}

/* --- the API --- */

static void test_api(void **state) {
  (void)state;
  static const char schema[] = "{\"enum\": [\"ab\", true]}";
  wn_tokenizer *tok;
  wn_constraint *c, *copy;
  float logits[300];
  bool over;
  assert_ok(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  assert_refused(ctx, wn_constraint_create_json(ctx, tok, "{", 1, &c), WN_ERR_FORMAT, "schema:1:1");
  assert_ok(ctx, wn_constraint_create_json(ctx, tok, schema, sizeof schema - 1, &c));
  for (int i = 0; i < 300; i++) logits[i] = (float)i;
  assert_refused(ctx, wn_constraint_mask(ctx, c, logits, 255, &over), WN_ERR_ARGUMENT, "the tokenizer has 256");
  assert_ok(ctx, wn_constraint_accept(ctx, c, '"'));
  assert_ok(ctx, wn_constraint_copy(ctx, c, &copy)); /* a copy of the start state */
  assert_ok(ctx, wn_constraint_mask(ctx, c, logits, 300, &over));
  for (int i = 0; i < 300; i++) assert_true(i == 'a' ? logits[i] == 'a' : logits[i] == -INFINITY);
  assert_refused(ctx, wn_constraint_accept(ctx, c, 'b'), WN_ERR_ARGUMENT, "token 98 may not come here");
  assert_refused(ctx, wn_constraint_accept(ctx, c, 300), WN_ERR_ARGUMENT, "token 300");
  for (const char *at = "ab\""; *at; at++) assert_ok(ctx, wn_constraint_accept(ctx, c, *at));
  assert_true(wn_constraint_is_complete(c) && !wn_constraint_is_complete(copy));
  for (int i = 0; i < 300; i++) logits[i] = (float)i;
  assert_ok(ctx, wn_constraint_mask(ctx, c, logits, 300, &over));
  assert_true(over && logits[7] == 7); /* bytes have no end token */
  for (const char *at = "true"; *at; at++) assert_ok(ctx, wn_constraint_accept(ctx, copy, *at));
  wn_constraint_destroy(c);
  assert_true(wn_constraint_is_complete(copy));
  wn_constraint_reset(copy);
  assert_false(wn_constraint_is_complete(copy));
  wn_constraint_destroy(copy);
  wn_tokenizer_destroy(tok);
}

/* A tokenizer that lacks a needed character says so at once instead of getting stuck later. */
static void test_missing_tokens(void **state) {
  (void)state;
  struct wn_tree_token tokens[256];
  static char single[256];
  static const char *const schemas[] = {"{}", "{}", "{\"const\": \"\xC3\xA9\"}"};
  static const unsigned char lacks[] = {'{', 'd', 0xA9};
  static const char *const says[] = {"'{'", "'d'", "0xc3"};
  for (int k = 0; k < 3; k++) {
    struct wn_token_tree *t;
    wn_constraint *c;
    uint32_t n = 0;
    json_t *schema = schema_of(schemas[k]);
    for (int i = 0; i < 256; i++) {
      single[i] = (char)i;
      if (i != lacks[k]) tokens[n++] = (struct wn_tree_token){&single[i], 1, i};
    }
    assert_ok(ctx, wn_token_tree_create(ctx, tokens, n, 256, NULL, 0, &t));
    assert_refused(ctx, wn_constraint_create_tree(ctx, t, schema, &c), WN_ERR_UNSUPPORTED, says[k]);
    wn_token_tree_destroy(t);
    json_decref(schema);
  }
  /* Without a token for one of the continuation bytes, only characters that are whole tokens are allowed. */
  struct wn_token_tree *t;
  uint32_t n = 0;
  for (int i = 0; i < 256; i++)
    if (i != 0x97) tokens[n++] = (struct wn_tree_token){&single[i], 1, i};
  tokens[n++] = (struct wn_tree_token){"\xC3\xA9", 2, 0x97};
  single[0x97] = (char)0x97, single[0xA9] = (char)0xA9;
  assert_ok(ctx, wn_token_tree_create(ctx, tokens, n, 256, NULL, 0, &t));
  wn_constraint *c = constraint_of(t, NULL);
  assert_ok(ctx, wn_constraint_accept(ctx, c, '{'));
  assert_ok(ctx, wn_constraint_accept(ctx, c, '"'));
  const uint8_t *allowed = wn_constraint_allowed(c);
  assert_true(allowed['a'] && allowed[0x97] && !allowed[0xC3] && !allowed[0xA9]);
  wn_constraint_destroy(c);
  wn_token_tree_destroy(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts),          cmocka_unit_test(test_refused),  cmocka_unit_test(test_depth),
      cmocka_unit_test(test_allowed),        cmocka_unit_test(test_api),      cmocka_unit_test(test_random_texts),
      cmocka_unit_test(test_valid_texts),    cmocka_unit_test(test_doubling), cmocka_unit_test(test_hostile),
      cmocka_unit_test(test_missing_tokens),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
