/* winnow op attention: one attention call, forward and backward, on the arrays of a case file. A case is a safetensors
 * file with q, k, v, dy, the arrays of its mechanisms and possibly doc_start; its metadata key "case" holds the shapes
 * and the mechanisms as JSON. The results go to another file. */
#include "cmd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/attention.h>
#include <winnow/kv.h>
#include "budgets.h"
#include "ui.h"

struct op_case {
  const char *path;
  bool forward_only;
  wn_attention_config config;
  wn_attention_arrays arrays; /* allocated here, borrowed by the call */
  wn_safetensors_entry entries[2 * WN_ATTENTION_SLOTS_MAX];
  char names[2 * WN_ATTENTION_SLOTS_MAX][32];
  int entry_count;
  int64_t budget; /* 0: none */
  wn_budgets budgets;
  void *owned[4 * WN_ATTENTION_SLOTS_MAX];
  int owned_count;
};

static void op_case_clear(struct op_case *c) {
  for (int i = 0; i < c->owned_count; i++) free(c->owned[i]);
}

/* Allocates zeroed memory, stores its address at `offset` of the arrays, and lets case_clear free it. */
static void *op_give(struct op_case *c, size_t offset, size_t count, size_t each) {
  void *p = c->owned_count < CLI_COUNT(c->owned) ? calloc(count, each) : NULL;
  if (!p) return NULL;
  c->owned[c->owned_count++] = p;
  memcpy((char *)&c->arrays + offset, &p, sizeof p);
  return p;
}

/* The element count of a shape, or -1 if that is not a valid size. */
static int64_t op_shape_count(const int64_t *shape, int ndim) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    if (shape[d] < 0 || __builtin_mul_overflow(n, shape[d], &n)) return -1;
  return n <= INT64_MAX / 16 ? n : -1;
}

static int op_read_size(const struct op_case *c, const json_t *object, const char *key, int64_t standard,
                        int64_t *out) {
  const json_t *value = json_object_get(object, key);
  *out = value ? (int64_t)json_integer_value(value) : standard;
  if (!value && !standard) return cli_error("%s: case: \"%s\" is missing", c->path, key);
  if ((value && !json_is_integer(value)) || *out < 1 || *out > INT32_MAX)
    return cli_error("%s: case: \"%s\" must be an integer from 1 to %" PRId32, c->path, key, INT32_MAX);
  return 0;
}

/* Reads threshold.control, the positions of control tokens in every sequence, and removes it from the mechanism's
 * object, whose other keys are configuration. */
static int op_read_control(struct op_case *c, json_t *attention) {
  json_t *threshold = json_object_get(attention, "threshold"), *list = json_object_get(threshold, "control");
  if (!list) return 0;
  const int64_t B = c->arrays.B, T = c->arrays.T;
  if (!json_is_array(list)) return cli_error("%s: case: \"control\" must be a list of positions", c->path);
  uint8_t *control = op_give(c, offsetof(wn_attention_arrays, control), (size_t)(B * T), 1);
  if (!control) return cli_error("%s: out of memory for the control positions", c->path);
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *value = json_array_get(list, i);
    const json_int_t at = json_integer_value(value);
    if (!json_is_integer(value) || at < 0 || at >= T)
      return cli_error("%s: case: control[%zu] must be a position from 0 to %" PRId64, c->path, i, T - 1);
    for (int64_t b = 0; b < B; b++) control[b * T + at] = 1;
  }
  json_object_del(threshold, "control");
  return 0;
}

/* Reads "budget", the tokens to hold, and "policy" (default selective). */
static int op_read_budget(struct op_case *c, const json_t *object) {
  const json_t *policy = json_object_get(object, "policy");
  int code = op_read_size(c, object, "budget", 0, &c->budget);
  wn_budgets_init(&c->budgets, &(wn_attention_config){.selective.enabled = true});
  c->budgets.layers = 1;
  c->budgets.tokens = &c->budget;
  c->budgets.per_kv_head = json_is_true(json_object_get(object, "per_kv_head"));
  const char *name = json_string_value(policy);
  const bool found = !policy || (name && cli_policy_named(name, strlen(name), &c->budgets.policy));
  return found || code ? code : cli_error("%s: case: \"policy\" is none of winnow's", c->path);
}

/* Reads the mechanisms and the shapes. */
static int op_read_case(wn_context *ctx, const char *text, struct op_case *c) {
  static const char *const known[] = {"B",    "T",         "Tk",           "H",      "Hkv",    "D",          "seed",
                                      "gain", "attention", "forward_only", "budget", "policy", "per_kv_head"};
  json_error_t where;
  json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &where);
  if (!object) return cli_error("%s: case: line %d, column %d: %s", c->path, where.line, where.column, where.text);
  int code = json_is_object(object) ? 0 : cli_error("%s: case: expected a JSON object", c->path);
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    bool found = false;
    for (int i = 0; i < CLI_COUNT(known); i++) found = found || !strcmp(key, known[i]);
    if (!code && !found) code = cli_error("%s: case: unknown key \"%s\"", c->path, key);
  }
  if (!code) code = op_read_size(c, object, "B", 0, &c->arrays.B);
  if (!code) code = op_read_size(c, object, "T", 0, &c->arrays.T);
  if (!code && json_object_get(object, "Tk")) code = op_read_size(c, object, "Tk", 0, &c->arrays.Tk);
  if (!code) code = op_read_size(c, object, "H", 0, &c->arrays.H);
  if (!code) code = op_read_size(c, object, "Hkv", c->arrays.H, &c->arrays.Hkv);
  if (!code) code = op_read_size(c, object, "D", 0, &c->arrays.D);
  if (!code && json_object_get(object, "budget")) code = op_read_budget(c, object);
  c->forward_only = json_is_true(json_object_get(object, "forward_only"));
  json_t *attention = json_object_get(object, "attention");
  if (!code) code = op_read_control(c, attention);
  wn_attention_config_init(&c->config);
  if (!code && attention) {
    char *dumped = json_dumps(attention, JSON_ENCODE_ANY);
    wn_status status = dumped ? wn_attention_config_parse(ctx, dumped, &c->config) : WN_ERR_MEMORY;
    free(dumped);
    if (status != WN_OK) code = cli_fail(ctx, status);
  }
  json_decref(object);
  return code;
}

/* Reads a tensor of the expected shape, converted to the computing dtype (doc_start, key_count: int32). */
static int op_read_tensor(struct op_case *c, const wn_safetensors *file, const char *name, const int64_t *shape,
                          int ndim, size_t offset) {
  const wn_safetensors_entry *e = wn_safetensors_find(file, name);
  if (!e) return cli_error("%s: tensor \"%s\" is missing", c->path, name);
  bool same = e->ndim == ndim;
  for (int d = 0; d < ndim && same; d++) same = e->shape[d] == shape[d];
  if (!same) {
    char expected[128] = "", found[128] = "";
    size_t n = 0, m = 0;
    for (int d = 0; d < ndim; d++)
      n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%" PRId64, d ? "," : "", shape[d]);
    for (int d = 0; d < e->ndim && m < sizeof found - 1; d++)
      m += (size_t)snprintf(found + m, sizeof found - m, "%s%" PRId64, d ? "," : "", e->shape[d]);
    return cli_error("%s: tensor \"%s\" has shape [%s], the case says [%s]", c->path, name, found, expected);
  }
  const int64_t count = op_shape_count(shape, ndim);
  const bool index = !strcmp(name, "doc_start") || !strcmp(name, "key_count");
  if (index ? e->dtype != WN_I32 : e->dtype != WN_F32 && e->dtype != WN_F64)
    return cli_error("%s: tensor \"%s\" is %s, expected %s", c->path, name, wn_dtype_name(e->dtype),
                     index ? "I32" : "F32 or F64");
  const size_t each = index ? sizeof(int32_t) : wn_dtype_size(c->arrays.dtype);
  void *out = count < 0 ? NULL : op_give(c, offset, (size_t)count, each);
  if (!out) return cli_error("%s: out of memory for tensor \"%s\"", c->path, name);
  if (index || e->dtype == c->arrays.dtype) {
    memcpy(out, e->data, (size_t)count * each);
    return 0;
  }
  const char *from = e->data;
  for (int64_t i = 0; i < count; i++) {
    if (e->dtype == WN_F32) {
      float v;
      memcpy(&v, from + (size_t)i * sizeof v, sizeof v);
      ((double *)out)[i] = (double)v;
    } else {
      double v;
      memcpy(&v, from + (size_t)i * sizeof v, sizeof v);
      ((float *)out)[i] = (float)v;
    }
  }
  return 0;
}

static int op_add_output(struct op_case *c, const char *prefix, const char *name, wn_dtype dtype, const int64_t *shape,
                         int ndim, size_t offset) {
  const int64_t count = op_shape_count(shape, ndim);
  void *out = count < 0 ? NULL : op_give(c, offset, (size_t)count, wn_dtype_size(dtype));
  if (!out) return cli_error("%s: out of memory for the result \"%s%s\"", c->path, prefix, name);
  char *full = c->names[c->entry_count];
  snprintf(full, sizeof c->names[0], "%s%s", prefix, name);
  wn_safetensors_entry *e = &c->entries[c->entry_count++];
  *e = (wn_safetensors_entry){.name = full, .dtype = dtype, .ndim = ndim, .data = out};
  memcpy(e->shape, shape, (size_t)ndim * sizeof *shape);
  e->bytes = (size_t)count * wn_dtype_size(dtype);
  return 0;
}

#define AT(field) offsetof(wn_attention_arrays, field)

/* Reads q, k, v, dy, y and the mechanisms' arrays. */
static int op_read_arrays(const wn_safetensors *file, struct op_case *c) {
  const wn_attention_arrays *a = &c->arrays;
  const int64_t of_q[] = {a->B, a->H, a->T, a->D}, of_k[] = {a->B, a->Hkv, a->Tk ? a->Tk : a->T, a->D};
  const int64_t of_rows[] = {a->B, a->T};
  const bool backward = !c->forward_only;
  wn_attention_slot slots[WN_ATTENTION_SLOTS_MAX];
  const int count = wn_attention_slots(&c->config, a, slots);
  int code = op_read_tensor(c, file, "q", of_q, 4, AT(q));
  if (!code) code = op_read_tensor(c, file, "k", of_k, 4, AT(k));
  if (!code) code = op_read_tensor(c, file, "v", of_k, 4, AT(v));
  if (!code && backward) code = op_read_tensor(c, file, "dy", of_q, 4, AT(dy));
  if (!code && wn_safetensors_find(file, "doc_start"))
    code = op_read_tensor(c, file, "doc_start", of_rows, 2, AT(doc_start));
  if (!code && wn_safetensors_find(file, "key_count"))
    code = op_read_tensor(c, file, "key_count", of_rows, 1, AT(key_count));
  if (!code) code = op_add_output(c, "", "y", a->dtype, of_q, 4, AT(y));
  if (!code && backward) code = op_add_output(c, "", "dq", a->dtype, of_q, 4, AT(dq));
  if (!code && backward) code = op_add_output(c, "", "dk", a->dtype, of_k, 4, AT(dk));
  if (!code && backward) code = op_add_output(c, "", "dv", a->dtype, of_k, 4, AT(dv));
  for (int i = 0; i < count && !code; i++) {
    const wn_attention_slot *s = &slots[i];
    if (!s->is_input) {
      code = op_add_output(c, "", s->name, s->dtype, s->shape, s->ndim, s->offset);
      continue;
    }
    code = op_read_tensor(c, file, s->name, s->shape, s->ndim, s->offset);
    if (!code && backward) code = op_add_output(c, "d", s->name, s->dtype, s->shape, s->ndim, s->gradient);
  }
  return code;
}

/* Computes evictions under the case's budget, for the call and as the result evicted_at, in which T + 1 means never. */
static int op_evict(wn_context *ctx, struct op_case *c) {
  wn_attention_arrays *a = &c->arrays;
  const int64_t P = wn_attention_eviction_groups(&c->config, a, &c->budgets), shape[] = {a->B, a->T};
  const int64_t of_groups[] = {a->B, P, a->T}, n = a->B * P * a->T;
  int32_t *evicted_at = op_give(c, AT(evicted_at), (size_t)n, sizeof *evicted_at);
  if (!evicted_at) return cli_error("%s: out of memory for the evictions", c->path);
  a->evicted_at = NULL;
  wn_status status = wn_attention_evictions(ctx, &c->config, a, &c->budgets, evicted_at);
  if (status != WN_OK) return cli_fail(ctx, status);
  int code = P > 1 ? op_add_output(c, "", "evicted_at", WN_I32, of_groups, 3, AT(evicted_at))
                   : op_add_output(c, "", "evicted_at", WN_I32, shape, 2, AT(evicted_at));
  if (code) return code;
  int32_t *out = (int32_t *)(uintptr_t)c->entries[c->entry_count - 1].data;
  for (int64_t i = 0; i < n; i++) out[i] = evicted_at[i] <= a->T ? evicted_at[i] : (int32_t)a->T + 1;
  a->evicted_at = evicted_at;
  a->evicted_groups = P;
  return 0;
}

static int op_report(const wn_context *ctx, const struct op_case *c, const char *out, bool json) {
  if (!json) return 0;
  json_t *names = json_array();
  for (int i = 0; i < c->entry_count; i++) json_array_append_new(names, json_string(c->entries[i].name));
  json_t *j = json_pack("{s:o, s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "case", cli_text(c->path), "out",
                        cli_text(out), "backend", wn_context_backend(ctx), "dtype", wn_dtype_name(c->arrays.dtype), "B",
                        (json_int_t)c->arrays.B, "T", (json_int_t)c->arrays.T, "H", (json_int_t)c->arrays.H, "Hkv",
                        (json_int_t)c->arrays.Hkv, "D", (json_int_t)c->arrays.D, "tensors", names);
  return cli_print_json(j);
}

struct op_attention {
  struct cli_common common;
  const char *in, *out, *dtype;
};

static const struct cli_option op_attention_options[] = {
    CLI_OPTION(struct op_attention, in, "case", "FILE", "safetensors with q, k, v, dy and the metadata key \"case\"",
               .required = true),
    CLI_OPTION(struct op_attention, out, "out", "FILE", "file for the results", .required = true),
    CLI_OPTION(struct op_attention, dtype, "dtype", "TYPE", "number type of the computation; f64 needs --backend ref",
               .choices = "f32|f64"),
    CLI_COMMON_OPTIONS(struct op_attention, common)};

static const struct cli_spec op_attention_spec = {
    .command = "winnow op attention",
    .summary = "Runs attention forward and, unless the case says \"forward_only\", backward, and writes y, dq, dk, "
               "dv\nand what the mechanisms add: F, M, mem_loss, count and the gradients of their arrays; under a "
               "\"budget\"\nof tokens, evicted_at too.",
    CLI_TABLE(op_attention_options)};

static int op_attention_run(wn_context *ctx, const struct op_attention *o) {
  struct op_case c = {.path = o->in, .arrays.dtype = strcmp(o->dtype, "f64") ? WN_F32 : WN_F64};
  wn_safetensors *file = NULL;
  int code = 0;
  wn_status status = wn_safetensors_open(ctx, o->in, &file);
  if (status != WN_OK) code = cli_fail(ctx, status);
  const char *text = code ? NULL : wn_safetensors_metadata(file, "case");
  if (!code && !text) code = cli_error("%s: the metadata key \"case\" is missing", o->in);
  if (!code) code = op_read_case(ctx, text, &c);
  if (!code) code = op_read_arrays(file, &c);
  if (!code && c.budget) code = op_evict(ctx, &c);
  if (!code) {
    status = wn_attention_run(ctx, &c.config, &c.arrays);
    if (status == WN_OK)
      status = wn_safetensors_write(ctx, o->out, c.entries, c.entry_count, (const char *const[]){"case", text, NULL});
    code = status == WN_OK ? op_report(ctx, &c, o->out, o->common.json) : cli_fail(ctx, status);
  }
  op_case_clear(&c);
  wn_safetensors_close(file);
  return code;
}

static int op_attention(int argc, char **argv) {
  struct op_attention o = {.common = CLI_COMMON_DEFAULTS, .dtype = "f32"};
  wn_context *ctx = NULL;
  int code = cli_parse(&op_attention_spec, argc, argv, &o, NULL);
  if (code == CLI_GO) code = cli_context_open(&o.common, &ctx);
  if (!code) code = op_attention_run(ctx, &o);
  wn_context_destroy(ctx);
  return code;
}

int cmd_op(int argc, char **argv) {
  static const struct cli_command commands[] = {
      {"attention", "attention forward and backward on a case file", op_attention},
  };
  return cli_dispatch("winnow op", "Runs one operation on a case file.", commands, CLI_COUNT(commands), argc, argv);
}
