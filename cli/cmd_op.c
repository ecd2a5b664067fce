/* winnow op attention: one attention call, forward and backward, on the arrays of a case file. A case is a
 * safetensors file with q, k, v, dy (and sq, sk, doc_start where they are needed) whose metadata key "case" holds the
 * shapes and the mechanism as JSON; the results go to another. */
#include "cmd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/attention.h>
#include "args.h"
#include "ui.h"

enum { Q, K, V, DY, SQ, SK, DOC_START, INPUTS };
enum { Y, F, M, MEM_LOSS, DQ, DK, DV, DSQ, DSK, OUTPUTS };

struct op_case {
  const char *path;
  int64_t B, T, H, Hkv, D;
  wn_dtype dtype; /* what it is computed in */
  bool forward_only;
  wn_attention_config config;
  void *in[INPUTS], *out[OUTPUTS];
  wn_safetensors_entry entries[OUTPUTS];
  int entry_count;
};

static void case_clear(struct op_case *c) {
  for (int i = 0; i < INPUTS; i++) free(c->in[i]);
  for (int i = 0; i < OUTPUTS; i++) free(c->out[i]);
}

/* The element count of a shape, or -1 when it is no size. */
static int64_t shape_count(const int64_t *shape, int ndim) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    if (shape[d] < 0 || __builtin_mul_overflow(n, shape[d], &n)) return -1;
  return n <= INT64_MAX / 16 ? n : -1;
}

static int read_size(const struct op_case *c, const json_t *object, const char *key, int64_t standard, int64_t *out) {
  const json_t *value = json_object_get(object, key);
  *out = value ? (int64_t)json_integer_value(value) : standard;
  if ((value && !json_is_integer(value)) || *out < 1 || *out > INT32_MAX)
    return cli_error("%s: case: \"%s\" must be an integer from 1 to %" PRId32, c->path, key, INT32_MAX);
  return 0;
}

/* The mechanism and the shapes. */
static int read_case(wn_context *ctx, const char *text, struct op_case *c) {
  /* Mechanisms of the case format that this engine knows by name but does not compute. */
  static const char *const missing[] = {"span", "relative", "window", "sqrt", "sinks", "exclusive", "threshold"};
  static const char *const known[] = {"B", "T", "H", "Hkv", "D", "seed", "gain", "attention", "forward_only"};
  json_error_t where;
  json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &where);
  if (!object) return cli_error("%s: case: line %d, column %d: %s", c->path, where.line, where.column, where.text);
  int code = json_is_object(object) ? 0 : cli_error("%s: case: expected a JSON object", c->path);
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    bool found = false;
    for (int i = 0; i < CLI_COUNT(known); i++) found = found || !strcmp(key, known[i]);
    if (!code && !strcmp(key, "budget"))
      code = cli_error("%s: case: attention under a token budget (\"budget\") is not part of this build", c->path);
    else if (!code && !found)
      code = cli_error("%s: case: unknown key \"%s\"", c->path, key);
  }
  if (!code) code = read_size(c, object, "B", 0, &c->B);
  if (!code) code = read_size(c, object, "T", 0, &c->T);
  if (!code) code = read_size(c, object, "H", 0, &c->H);
  if (!code) code = read_size(c, object, "Hkv", c->H, &c->Hkv);
  if (!code) code = read_size(c, object, "D", 0, &c->D);
  c->forward_only = json_is_true(json_object_get(object, "forward_only"));
  json_t *attention = json_object_get(object, "attention");
  for (int i = 0; i < CLI_COUNT(missing) && !code; i++)
    if (json_object_get(attention, missing[i]))
      code = cli_error("%s: case: mechanism \"%s\" is not part of this build", c->path, missing[i]);
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

/* A tensor of the file, of the expected shape, in the computing dtype (doc_start: int32). */
static int read_tensor(const struct op_case *c, const wn_safetensors *file, const char *name, const int64_t *shape,
                       int ndim, void **out) {
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
  const int64_t count = shape_count(shape, ndim);
  const bool index = !strcmp(name, "doc_start");
  if (index ? e->dtype != WN_I32 : e->dtype != WN_F32 && e->dtype != WN_F64)
    return cli_error("%s: tensor \"%s\" is %s, expected %s", c->path, name, wn_dtype_name(e->dtype),
                     index ? "I32" : "F32 or F64");
  const size_t each = index ? sizeof(int32_t) : wn_dtype_size(c->dtype);
  *out = calloc((size_t)count, each);
  if (!*out) return cli_error("%s: out of memory for tensor \"%s\"", c->path, name);
  if (index || e->dtype == c->dtype) {
    memcpy(*out, e->data, (size_t)count * each);
    return 0;
  }
  const char *from = e->data;
  for (int64_t i = 0; i < count; i++) {
    if (e->dtype == WN_F32) {
      float v;
      memcpy(&v, from + (size_t)i * sizeof v, sizeof v);
      ((double *)*out)[i] = (double)v;
    } else {
      double v;
      memcpy(&v, from + (size_t)i * sizeof v, sizeof v);
      ((float *)*out)[i] = (float)v;
    }
  }
  return 0;
}

static int read_inputs(const wn_safetensors *file, struct op_case *c) {
  const int64_t of_q[] = {c->B, c->H, c->T, c->D}, of_k[] = {c->B, c->Hkv, c->T, c->D}, of_s[] = {c->B, c->T, c->D};
  int code = read_tensor(c, file, "q", of_q, 4, &c->in[Q]);
  if (!code) code = read_tensor(c, file, "k", of_k, 4, &c->in[K]);
  if (!code) code = read_tensor(c, file, "v", of_k, 4, &c->in[V]);
  if (!code && !c->forward_only) code = read_tensor(c, file, "dy", of_q, 4, &c->in[DY]);
  if (!code && c->config.selective.enabled && c->config.selective.bilinear) {
    code = read_tensor(c, file, "sq", of_s, 3, &c->in[SQ]);
    if (!code) code = read_tensor(c, file, "sk", of_s, 3, &c->in[SK]);
  }
  if (!code && wn_safetensors_find(file, "doc_start"))
    code = read_tensor(c, file, "doc_start", of_s, 2, &c->in[DOC_START]);
  return code;
}

static int add_output(struct op_case *c, int which, const char *name, wn_dtype dtype, const int64_t *shape, int ndim) {
  const int64_t count = shape_count(shape, ndim);
  c->out[which] = count < 0 ? NULL : calloc((size_t)count, wn_dtype_size(dtype));
  if (!c->out[which]) return cli_error("%s: out of memory for the result \"%s\"", c->path, name);
  wn_safetensors_entry *e = &c->entries[c->entry_count++];
  *e = (wn_safetensors_entry){.name = name, .dtype = dtype, .ndim = ndim, .data = c->out[which]};
  memcpy(e->shape, shape, (size_t)ndim * sizeof *shape);
  e->bytes = (size_t)count * wn_dtype_size(dtype);
  return 0;
}

static int add_outputs(struct op_case *c) {
  const int64_t of_q[] = {c->B, c->H, c->T, c->D}, of_k[] = {c->B, c->Hkv, c->T, c->D};
  const int64_t of_s[] = {c->B, c->T, c->D}, of_f[] = {c->B, c->T, c->T}, one[] = {1};
  const wn_selective_config *s = &c->config.selective;
  int code = add_output(c, Y, "y", c->dtype, of_q, 4);
  if (!code && s->enabled) code = add_output(c, F, "F", c->dtype, of_f, 3);
  if (!code && s->enabled && s->mem.enabled) {
    code = add_output(c, M, "M", c->dtype, of_s, 2);
    if (!code) code = add_output(c, MEM_LOSS, "mem_loss", WN_F64, one, 1);
  }
  if (code || c->forward_only) return code;
  code = add_output(c, DQ, "dq", c->dtype, of_q, 4);
  if (!code) code = add_output(c, DK, "dk", c->dtype, of_k, 4);
  if (!code) code = add_output(c, DV, "dv", c->dtype, of_k, 4);
  if (!code && s->enabled && s->bilinear) {
    code = add_output(c, DSQ, "dsq", c->dtype, of_s, 3);
    if (!code) code = add_output(c, DSK, "dsk", c->dtype, of_s, 3);
  }
  return code;
}

static wn_status compute(wn_context *ctx, struct op_case *c) {
  return wn_attention_run(ctx, &c->config,
                          &(wn_attention_arrays){.B = c->B,
                                                 .T = c->T,
                                                 .H = c->H,
                                                 .Hkv = c->Hkv,
                                                 .D = c->D,
                                                 .dtype = c->dtype,
                                                 .q = c->in[Q],
                                                 .k = c->in[K],
                                                 .v = c->in[V],
                                                 .sq = c->in[SQ],
                                                 .sk = c->in[SK],
                                                 .doc_start = c->in[DOC_START],
                                                 .y = c->out[Y],
                                                 .F = c->out[F],
                                                 .M = c->out[M],
                                                 .mem_loss = c->out[MEM_LOSS],
                                                 .dy = c->in[DY],
                                                 .dq = c->out[DQ],
                                                 .dk = c->out[DK],
                                                 .dv = c->out[DV],
                                                 .dsq = c->out[DSQ],
                                                 .dsk = c->out[DSK]});
}

static int report(const wn_context *ctx, const struct op_case *c, const char *out, bool json) {
  if (!json) return 0;
  json_t *names = json_array();
  for (int i = 0; i < c->entry_count; i++) json_array_append_new(names, json_string(c->entries[i].name));
  json_t *j =
      json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "case", c->path, "out", out, "backend",
                wn_context_backend(ctx), "dtype", wn_dtype_name(c->dtype), "B", (json_int_t)c->B, "T", (json_int_t)c->T,
                "H", (json_int_t)c->H, "Hkv", (json_int_t)c->Hkv, "D", (json_int_t)c->D, "tensors", names);
  return cli_print_json(j);
}

static int cmd_attention(int argc, char **argv) {
  struct cli_common common = CLI_COMMON_DEFAULTS;
  const char *in = NULL, *out = NULL, *dtype = "f32";
  const struct cli_option options[] = {
      {.name = "case",
       .type = CLI_STRING,
       .out = &in,
       .metavar = "FILE",
       .required = true,
       .help = "safetensors with q, k, v, dy and the metadata key \"case\""},
      {.name = "out", .type = CLI_STRING, .out = &out, .metavar = "FILE", .required = true, .help = "where results go"},
      {.name = "dtype",
       .type = CLI_STRING,
       .out = &dtype,
       .metavar = "TYPE",
       .choices = "f32|f64",
       .help = "what is computed in; f64 needs --backend ref"},
      CLI_COMMON_OPTIONS(&common)};
  const struct cli_spec spec = {
      .command = "winnow op attention",
      .summary = "Runs attention forward and, unless the case says \"forward_only\", backward, and writes y, dq, dk, "
                 "dv\nand what the mechanism adds: F, M, mem_loss, dsq, dsk.",
      .options = options,
      .option_count = CLI_COUNT(options)};
  int code = cli_parse(&spec, argc, argv, NULL);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_context_open(&common, &ctx);
  if (code) return code;
  struct op_case c = {.path = in, .dtype = strcmp(dtype, "f64") ? WN_F32 : WN_F64};
  wn_safetensors *file = NULL;
  wn_status status = wn_safetensors_open(ctx, in, &file);
  if (status != WN_OK) code = cli_fail(ctx, status);
  const char *text = code ? NULL : wn_safetensors_metadata(file, "case");
  if (!code && !text) code = cli_error("%s: the metadata key \"case\" is missing", in);
  if (!code) code = read_case(ctx, text, &c);
  if (!code) code = read_inputs(file, &c);
  if (!code) code = add_outputs(&c);
  if (!code) {
    status = compute(ctx, &c);
    if (status == WN_OK)
      status = wn_safetensors_write(ctx, out, c.entries, c.entry_count, (const char *const[]){"case", text, NULL});
    code = status == WN_OK ? report(ctx, &c, out, common.json) : cli_fail(ctx, status);
  }
  case_clear(&c);
  wn_safetensors_close(file);
  wn_context_destroy(ctx);
  return code;
}

int cmd_op(int argc, char **argv) {
  static const struct cli_command commands[] = {
      {"attention", "attention forward and backward on a case file", cmd_attention},
  };
  return cli_dispatch("winnow op", "Runs one operation on a case file.", commands, CLI_COUNT(commands), argc, argv);
}
