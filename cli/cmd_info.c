/* winnow info: describes a model's file or folder, or this build and machine. */
#include "cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <winnow/model.h>
#include <winnow/verify.h>
#include "recipe.h"
#include "ui.h"

static json_t *info_strings(const char *const *list) {
  json_t *array = json_array();
  for (int i = 0; list && list[i]; i++) json_array_append_new(array, json_string(list[i]));
  return array;
}

static void info_print_strings(const char *title, const char *const *list) {
  printf("%-14s", title);
  for (int i = 0; list && list[i]; i++) printf("%s%s", i ? ", " : "", list[i]);
  putchar('\n');
}

static json_t *info_version(int cuda) { /* 12040: "12.4" */
  char text[32];
  snprintf(text, sizeof text, "%d.%d", cuda / 1000, cuda % 1000 / 10);
  return json_string(text);
}

/* The devices of backend cuda; if empty, wn_context_error says why. */
static json_t *info_devices(wn_context *ctx) {
  json_t *all = json_array();
  wn_device_info d;
  for (int i = 0; wn_device_info_get(ctx, i, &d) == WN_OK; i++) {
    json_t *j =
        json_pack("{s:s, s:o, s:I, s:o, s:o, s:s}", "name", d.name, "compute_capability",
                  info_version(d.major * 1000 + d.minor * 10), "memory_bytes", (json_int_t)d.memory_bytes, "driver",
                  info_version(d.driver_version), "cuda", info_version(d.cuda_version), "products", d.products);
    json_array_append_new(all, j);
  }
  return all;
}

static void info_print_devices(const json_t *devices, const char *why) {
  size_t i;
  json_t *d;
  json_array_foreach(devices, i, d)
      printf("%-14s%s, compute capability %s, %s, driver for CUDA %s, products by %s\n", i ? "" : "cuda",
             json_string_value(json_object_get(d, "name")), json_string_value(json_object_get(d, "compute_capability")),
             cli_bytes((double)json_integer_value(json_object_get(d, "memory_bytes"))),
             json_string_value(json_object_get(d, "driver")), json_string_value(json_object_get(d, "products")));
  if (json_array_size(devices) == 0) printf("%-14snone: %s\n", "cuda", why);
}

static int info_machine(wn_context *ctx, bool json) {
  wn_build_info info;
  wn_status status = wn_build_info_get(ctx, &info);
  if (status != WN_OK) return cli_fail(ctx, status);
  struct sysinfo memory = {0};
  sysinfo(&memory);
  json_t *devices = info_devices(ctx);
  double total = (double)memory.totalram * memory.mem_unit, spare = (double)memory.freeram * memory.mem_unit;
  if (json) {
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:s}", "version", info.version, "commit", info.commit,
                          "compiler", info.compiler, "build_type", info.build_type, "cpu", info.cpu_name, "isa",
                          info.isa, "threads", wn_context_threads(ctx), "backend", wn_context_backend(ctx));
    json_object_set_new(j, "bfloat16", json_string(info.bfloat16));
    json_object_set_new(j, "prompts", json_string(info.prompts));
    json_object_set_new(j, "features", info_strings(info.features));
    json_object_set_new(j, "backends", info_strings(info.backends));
    json_object_set_new(j, "libraries", info_strings(info.libraries));
    json_object_set_new(j, "without", json_string(info.without));
    if (json_array_size(devices) == 0) json_object_set_new(j, "no_device", json_string(wn_context_error(ctx)));
    json_object_set_new(j, "devices", devices);
    json_object_set_new(j, "memory_bytes", json_integer((json_int_t)total));
    json_object_set_new(j, "memory_free_bytes", json_integer((json_int_t)spare));
    return cli_print_json(j);
  }
  printf("winnow        %s (%s), %s, %s\n", info.version, info.commit, info.build_type, info.compiler);
  printf("cpu           %s\n", info.cpu_name);
  printf("kernels       %s, %d threads, backend %s\n", info.isa, wn_context_threads(ctx), wn_context_backend(ctx));
  printf("bfloat16      products by %s\n",
         strcmp(info.bfloat16, "float32") != 0 ? info.bfloat16 : "float32, of rounded numbers");
  printf("GGUF prompts  products by %s\n", info.prompts);
  info_print_strings("features", info.features);
  info_print_strings("backends", info.backends);
  info_print_strings("libraries", info.libraries);
  if (*info.without) printf("without       %s\n", info.without);
  info_print_devices(devices, wn_context_error(ctx));
  json_decref(devices);
  printf("memory        %s, %s free\n", cli_bytes(total), cli_bytes(spare));
  return 0;
}

/* "F32", "Q4_K+Q6_K": the types of a tensor's parts, with equal neighbours merged. */
static void info_types_text(const wn_tensor_info *e, char *out, size_t bytes) {
  size_t n = 0;
  for (int k = 0; k < e->parts && n < bytes; k++)
    if (!k || e->types[k] != e->types[k - 1])
      n += (size_t)snprintf(out + n, bytes - n, "%s%s", k ? "+" : "", wn_gguf_type_name(e->types[k]));
}

static void info_shape_text(const wn_tensor_info *e, char *out, size_t bytes) {
  size_t n = (size_t)snprintf(out, bytes, "[");
  for (int d = 0; d < e->ndim && n < bytes; d++)
    n += (size_t)snprintf(out + n, bytes - n, "%s%" PRId64, d ? ", " : "", e->shape[d]);
  if (n < bytes) snprintf(out + n, bytes - n, "]");
}

/* The attention's mechanisms and the layers that have them. */
static json_t *info_mechanisms(const wn_model_config *config) {
  json_t *all = json_array();
  wn_mechanism_use use;
  for (int i = 0; wn_mechanism_use_at(&config->attention, i, 0, &use); i++) {
    json_t *layers = json_array();
    for (int64_t l = 0; l < config->layers; l++)
      if (wn_mechanism_use_at(&config->attention, i, l, &use) && use.in_layer)
        json_array_append_new(layers, json_integer(l));
    json_array_append_new(all,
                          json_pack("{s:s, s:s, s:o}", "name", use.name, "summary", use.summary, "layers", layers));
  }
  return all;
}

static void info_print_mechanisms(const json_t *all, int64_t layers) {
  size_t i, k;
  json_t *use, *layer;
  if (json_array_size(all) == 0) puts("\nattention: dense");
  json_array_foreach(all, i, use) {
    const json_t *in = json_object_get(use, "layers");
    printf("%s%s in ", i ? "           " : "\nattention: ", json_string_value(json_object_get(use, "name")));
    if ((int64_t)json_array_size(in) == layers)
      printf("every layer");
    else if (json_array_size(in) == 0)
      printf("no layer");
    else
      json_array_foreach(in, k, layer) printf("%s %" JSON_INTEGER_FORMAT, k ? "" : "layers", json_integer_value(layer));
    printf(": %s\n", json_string_value(json_object_get(use, "summary")));
  }
  putchar('\n');
}

/* Bytes and tensors of each storage type. */
static json_t *info_types(const wn_model *model) {
  json_t *all = json_object();
  for (int t = 0; t < WN_GGUF_TYPE_COUNT; t++) {
    json_int_t tensors = 0, bytes = 0;
    for (int i = 0; i < wn_model_tensor_count(model); i++) {
      wn_tensor_info e;
      if (wn_model_tensor_info(model, i, &e) != WN_OK || e.parts == 0) continue;
      if (e.types[0] == (wn_gguf_type)t)
        tensors++, bytes += (json_int_t)e.bytes; /* parts of other types count with the first */
    }
    if (tensors)
      json_object_set_new(all, wn_gguf_type_name((wn_gguf_type)t),
                          json_pack("{s:I, s:I}", "tensors", tensors, "bytes", bytes));
  }
  return all;
}

static void info_print_types(const json_t *all) {
  const char *name;
  json_t *type;
  printf("weights:   ");
  bool first = true;
  json_object_foreach((json_t *)(uintptr_t)all, name, type) {
    printf("%s%s %s in %" JSON_INTEGER_FORMAT " tensor%s", first ? " " : ", ", name,
           cli_bytes((double)json_integer_value(json_object_get(type, "bytes"))),
           json_integer_value(json_object_get(type, "tensors")),
           json_integer_value(json_object_get(type, "tensors")) == 1 ? "" : "s");
    first = false;
  }
  putchar('\n');
}

static void info_print_shape(const wn_model_config *c) {
  static const char *const kinds[] = {"SwiGLU", "GELU", "ReLU", "GELU (erf)", "GEGLU", "squared ReLU"};
  printf("shape:      %" PRId64 " layer%s of width %" PRId64 ", %" PRId64 " head%s of %" PRId64, c->layers,
         c->layers == 1 ? "" : "s", c->width, c->heads, c->heads == 1 ? "" : "s", c->head_size);
  if (c->kv_heads != c->heads) printf(" over %" PRId64 " key-value head%s", c->kv_heads, c->kv_heads == 1 ? "" : "s");
  printf(", feed-forward %" PRId64 " (%s), vocabulary %" PRId64, c->ffn_width, kinds[c->ffn], c->vocab_size);
  if (c->experts.count) {
    printf(", %" PRId64 " of %" PRId64 " experts a token", c->experts.active, c->experts.count);
    if (c->experts.shared_width) printf(" and one of %" PRId64 " for all", c->experts.shared_width);
  }
  if (c->encoder.layers)
    printf(", encoder of %" PRId64 " layer%s%s", c->encoder.layers, c->encoder.layers == 1 ? "" : "s",
           c->encoder.selective ? " with selective attention" : "");
  putchar('\n');
}

static void info_print_positions(const wn_model_config *c) {
  static const char *const scalings[] = {"", "linear", "dynamic", "llama3", "yarn", "longrope"};
  printf("context:    %" PRId64 " tokens; ", c->context);
  if (c->position == WN_POS_NONE) puts("no positions");
  if (c->position == WN_POS_LEARNED) puts("learned positions");
  if (c->position != WN_POS_ROPE) return;
  printf("rotary positions of base %g, %s pairs", c->rope_theta,
         c->rope_pairs == WN_ROPE_HALVES ? "half-apart" : "adjacent");
  if (c->rope_size) printf(", %" PRId64 " of %" PRId64 " elements", c->rope_size, c->head_size);
  if (c->rope_factors) printf(", frequencies divided by a tensor of factors");
  if (c->rope_scaling.type != WN_ROPE_PLAIN)
    printf(", %s scaling by %g from %" PRId64, scalings[c->rope_scaling.type], c->rope_scaling.factor,
           c->rope_scaling.context ? c->rope_scaling.context : c->context);
  putchar('\n');
}

/* What the model declares about generating; an empty object: nothing. */
static json_t *info_declared(const wn_model *model) {
  char *text = NULL;
  json_t *all = wn_declared_json(NULL, wn_model_declared(model), &text) == WN_OK ? json_loads(text, 0, NULL) : NULL;
  wn_text_free(text);
  return all ? all : json_object();
}

/* One line: "declares:   eos_token_id 2 (<|im_end|>), 7; temperature 0.6". */
static void info_print_declared(const wn_model *model, const wn_tokenizer *tok) {
  enum { SHOWN = 8 }; /* ids of a list; lists of suppressed tokens may be long */
  const char *name;
  json_t *value, *all = info_declared(model);
  bool first = true;
  json_object_foreach(all, name, value) {
    printf("%s %s", first ? "declares:  " : ";", name);
    first = false;
    for (size_t i = 0; i < json_array_size(value) && i < SHOWN; i++) {
      const int32_t id = (int32_t)json_integer_value(json_array_get(value, i));
      size_t bytes = 0;
      const char *text = tok ? wn_tokenizer_token_name(tok, id, &bytes) : NULL;
      printf("%s %d", i ? "," : "", id);
      if (text) printf(" (%.*s)", (int)bytes, text);
    }
    if (json_array_size(value) > SHOWN) printf(", ... (%zu)", json_array_size(value));
    if (json_is_boolean(value)) printf(" %s", json_is_true(value) ? "true" : "false");
    if (json_is_number(value)) printf(" %g", json_number_value(value));
  }
  if (!first) putchar('\n');
  json_decref(all);
}

struct info {
  wn_model_origin origin;
  wn_model *model;
  char *config;
  wn_tokenizer *tok;
};

static wn_status open_info(wn_context *ctx, const char *path, struct info *in) {
  wn_status status = wn_model_origin_read(ctx, path, &in->origin);
  if (status == WN_OK) status = wn_model_load(ctx, path, NULL, &in->model);
  if (status == WN_OK) status = wn_model_config_json(ctx, wn_model_config_get(in->model), &in->config);
  /* A model may have none; one that cannot be read is told. */
  const wn_status read = status == WN_OK ? wn_tokenizer_load(ctx, path, &in->tok) : WN_OK;
  if (read == WN_ERR_UNSUPPORTED) cli_warning("%s", wn_context_error(ctx));
  return status;
}

static void print_info(const char *path, const struct info *in, const json_t *uses, bool all) {
  const wn_model_config *c = wn_model_config_get(in->model);
  const uint64_t parameters = wn_model_parameter_count(in->model);
  printf("%s: %s (%s), %" PRIu64 " parameters (%s), %d tensors, tokenizer %s\n", path, in->origin.format,
         in->origin.architecture, parameters, cli_count((double)parameters), wn_model_tensor_count(in->model),
         in->tok ? wn_tokenizer_kind(in->tok) : "none");
  info_print_mechanisms(uses, c->layers);
  info_print_shape(c);
  info_print_positions(c);
  json_t *by_type = info_types(in->model);
  info_print_types(by_type);
  json_decref(by_type);
  if (in->tok) printf("tokenizer:  %s, %d entries\n", wn_tokenizer_kind(in->tok), wn_tokenizer_vocab_size(in->tok));
  info_print_declared(in->model, in->tok);
  for (int i = 0; all && i < wn_model_tensor_count(in->model); i++) {
    wn_tensor_info e;
    char text[64], shape[128];
    if (i == 0) putchar('\n');
    if (wn_model_tensor_info(in->model, i, &e) != WN_OK) continue;
    info_types_text(&e, text, sizeof text);
    info_shape_text(&e, shape, sizeof shape);
    printf("  %-44s %s %s\n", e.name, text, shape);
  }
  if (all) printf("\n%s\n", in->config);
}

static json_t *info_json(const char *path, const struct info *in, json_t *uses) {
  json_t *tensors = json_array();
  for (int i = 0; i < wn_model_tensor_count(in->model); i++) {
    wn_tensor_info e;
    char text[64];
    if (wn_model_tensor_info(in->model, i, &e) != WN_OK) continue;
    info_types_text(&e, text, sizeof text);
    json_t *shape = json_array();
    for (int d = 0; d < e.ndim; d++) json_array_append_new(shape, json_integer(e.shape[d]));
    json_array_append_new(tensors, json_pack("{s:s, s:s, s:o}", "name", e.name, "dtype", text, "shape", shape));
  }
  return json_pack("{s:o, s:s, s:s, s:I, s:i, s:o, s:o, s:o, s:O, s:o, s:o}", "model", cli_text(path), "format",
                   in->origin.format, "architecture", in->origin.architecture, "parameters",
                   (json_int_t)wn_model_parameter_count(in->model), "tensor_count", wn_model_tensor_count(in->model),
                   "tokenizer", in->tok ? json_string(wn_tokenizer_kind(in->tok)) : json_null(), "declares",
                   info_declared(in->model), "types", info_types(in->model), "mechanisms", uses, "config",
                   json_loads(in->config, 0, NULL), "tensors", tensors);
}

static int info_checkpoint(wn_context *ctx, const char *path, bool json, bool all) {
  struct info in = {0};
  const wn_status status = open_info(ctx, path, &in);
  int code = status == WN_OK ? 0 : cli_fail(ctx, status);
  json_t *uses = code ? NULL : info_mechanisms(wn_model_config_get(in.model));
  if (!code && json)
    code = cli_print_json(info_json(path, &in, uses));
  else if (!code)
    print_info(path, &in, uses, all);
  json_decref(uses);
  wn_tokenizer_destroy(in.tok);
  wn_text_free(in.config);
  wn_model_destroy(in.model);
  return code;
}

/* ---- --verify ---- */

struct verified {
  json_t *files; /* NULL: print them */
  int damaged, unreadable, count;
};

static bool info_verified(void *user, const wn_file_report *r) {
  struct verified *v = user;
  char path[4200], detail[2100];
  v->count++;
  v->damaged += r->state == WN_FILE_DAMAGED;
  v->unreadable += r->state == WN_FILE_UNREADABLE;
  wn_line_escape(r->path, path, sizeof path);
  wn_line_escape(r->detail, detail, sizeof detail);
  if (v->files)
    json_array_append_new(v->files,
                          json_pack("{s:s, s:s, s:I, s:s, s:s}", "path", path, "kind", r->kind, "bytes",
                                    (json_int_t)r->bytes, "state", wn_file_state_name(r->state), "detail", detail));
  else
    printf("%s: %s%s%s (%s, %s)\n", path, wn_file_state_name(r->state), *detail ? ": " : "", detail, r->kind,
           cli_bytes((double)r->bytes));
  return true;
}

/* "1 of 3 files damaged", "2 of 3 files unreadable", or both. */
static int info_verify_failed(const struct verified *v) {
  char other[48] = "";
  if (v->damaged && v->unreadable) snprintf(other, sizeof other, ", %d unreadable", v->unreadable);
  return cli_error("%d of %d file%s %s%s", v->damaged ? v->damaged : v->unreadable, v->count, v->count == 1 ? "" : "s",
                   v->damaged ? "damaged" : "unreadable", other);
}

/* Prints the state of the files; exit code 1 if any is damaged or unreadable. */
static int info_verify(wn_context *ctx, const char *path, bool json) {
  struct verified v = {.files = json ? json_array() : NULL};
  const wn_status status = wn_verify(ctx, path, info_verified, &v);
  if (status != WN_OK && v.count == 0) {
    json_decref(v.files);
    return cli_fail(ctx, status);
  }
  int code = 0;
  if (json)
    code = cli_print_json(json_pack("{s:o, s:i, s:i, s:o}", "path", cli_text(path), "damaged", v.damaged, "unreadable",
                                    v.unreadable, "files", v.files));
  if (status != WN_OK) code = info_verify_failed(&v);
  return code;
}

struct info_command {
  struct cli_common common;
  const char *model;
  bool all, verify;
};

static const struct cli_option info_options[] = {
    CLI_OPTION(struct info_command, model, "model", "PATH",
               "a checkpoint, a Hugging Face folder or a .gguf file (or as an argument)"),
    CLI_OPTION(struct info_command, all, "all", NULL, "every tensor with its type and shape, and the configuration"),
    CLI_OPTION(struct info_command, verify, "verify", NULL,
               "compare the files of PATH (a model, a run, token files) with their checksums"),
    CLI_COMMON_OPTIONS(struct info_command, common)};

static const struct cli_spec info_spec = {
    .command = "winnow info",
    .summary = "For a model: the program that wrote it, parameters, storage types, positions, tokenizer; with\n"
               "--all its tensors and configuration as well. Without a model: version, CPU features, backends, "
               "libraries and memory.\n"
               "With --verify: the state of each file; exit code 1 where one is damaged or cannot be read.",
    CLI_TABLE(info_options),
    CLI_OPTIONAL("[PATH]")};

int cmd_info(int argc, char **argv) {
  struct info_command info = {.common = CLI_COMMON_DEFAULTS};
  wn_context *ctx = NULL;
  int code = cli_parse_model(&info_spec, argc, argv, &info, false, &info.model);
  if (code == CLI_GO && info.all && info.verify)
    code = cli_usage_error(info_spec.command, "--all and --verify exclude each other");
  if (code == CLI_GO && !info.model && (info.all || info.verify))
    code =
        cli_usage_error(info_spec.command, info.all ? "--all: of which model?" : "--verify: of which file or folder?");
  if (code == CLI_GO) code = cli_context_open(&info.common, &ctx);
  if (code) return code;
  code = info.verify  ? info_verify(ctx, info.model, info.common.json)
         : info.model ? info_checkpoint(ctx, info.model, info.common.json, info.all)
                      : info_machine(ctx, info.common.json);
  wn_context_destroy(ctx);
  return code;
}
