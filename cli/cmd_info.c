/* winnow info: what a checkpoint holds, or what this build and machine have. */
#include "cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <winnow/model.h>
#include "args.h"
#include "recipe.h"
#include "ui.h"

static json_t *strings(const char *const *list) {
  json_t *array = json_array();
  for (int i = 0; list && list[i]; i++) json_array_append_new(array, json_string(list[i]));
  return array;
}

static void print_strings(const char *title, const char *const *list) {
  printf("%-14s", title);
  for (int i = 0; list && list[i]; i++) printf("%s%s", i ? ", " : "", list[i]);
  putchar('\n');
}

static int machine(wn_context *ctx, bool json) {
  wn_build_info info;
  wn_status status = wn_build_info_get(ctx, &info);
  if (status != WN_OK) return cli_fail(ctx, status);
  struct sysinfo memory = {0};
  sysinfo(&memory);
  double total = (double)memory.totalram * memory.mem_unit, spare = (double)memory.freeram * memory.mem_unit;
  if (json) {
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:s}", "version", info.version, "commit", info.commit,
                          "compiler", info.compiler, "build_type", info.build_type, "cpu", info.cpu_name, "isa",
                          info.isa, "threads", wn_context_threads(ctx), "backend", wn_context_backend(ctx));
    json_object_set_new(j, "features", strings(info.features));
    json_object_set_new(j, "backends", strings(info.backends));
    json_object_set_new(j, "libraries", strings(info.libraries));
    json_object_set_new(j, "memory_bytes", json_integer((json_int_t)total));
    json_object_set_new(j, "memory_free_bytes", json_integer((json_int_t)spare));
    return cli_print_json(j);
  }
  printf("winnow        %s (%s), %s, %s\n", info.version, info.commit, info.build_type, info.compiler);
  printf("cpu           %s\n", info.cpu_name);
  printf("kernels       %s, %d threads, backend %s\n", info.isa, wn_context_threads(ctx), wn_context_backend(ctx));
  print_strings("features", info.features);
  print_strings("backends", info.backends);
  print_strings("libraries", info.libraries);
  printf("memory        %s, %s free\n", cli_bytes(total), cli_bytes(spare));
  return 0;
}

/* "F32", "Q4_K+Q6_K": a tensor's runs of rows, neighbours of one type as one. */
static void types_text(const wn_tensor_info *e, char *out, size_t bytes) {
  size_t n = 0;
  for (int k = 0; k < e->parts && n < bytes; k++)
    if (!k || e->types[k] != e->types[k - 1])
      n += (size_t)snprintf(out + n, bytes - n, "%s%s", k ? "+" : "", wn_gguf_type_name(e->types[k]));
}

static void shape_text(const wn_tensor_info *e, char *out, size_t bytes) {
  size_t n = (size_t)snprintf(out, bytes, "[");
  for (int d = 0; d < e->ndim && n < bytes; d++)
    n += (size_t)snprintf(out + n, bytes - n, "%s%" PRId64, d ? ", " : "", e->shape[d]);
  if (n < bytes) snprintf(out + n, bytes - n, "]");
}

/* The mechanisms of its attention and the layers that have them. */
static json_t *mechanisms(const wn_model_config *config) {
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

static void print_mechanisms(const json_t *all, int64_t layers) {
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

static int checkpoint(wn_context *ctx, const char *dir, bool json) {
  wn_model *model = NULL;
  char *config = NULL;
  wn_status status = wn_model_load(ctx, dir, &model);
  if (status == WN_OK) status = wn_model_config_json(ctx, wn_model_config_get(model), &config);
  int code = status == WN_OK ? 0 : cli_fail(ctx, status);
  wn_tokenizer *tok = NULL;
  if (!code && wn_tokenizer_load(ctx, dir, &tok) != WN_OK) tok = NULL; /* a checkpoint may have none */
  uint64_t parameters = code ? 0 : wn_model_parameter_count(model);
  int count = code ? 0 : wn_model_tensor_count(model);
  json_t *tensors = json_array(), *uses = code ? json_array() : mechanisms(wn_model_config_get(model));
  if (!code && !json) {
    printf("%s: %" PRIu64 " parameters (%s), %d tensors, tokenizer %s\n", dir, parameters,
           cli_count((double)parameters), count, tok ? wn_tokenizer_kind(tok) : "none");
    print_mechanisms(uses, wn_model_config_get(model)->layers);
  }
  for (int i = 0; i < count && !code; i++) {
    wn_tensor_info e;
    char types[64];
    status = wn_model_tensor_info(model, i, &e);
    if (status == WN_OK) types_text(&e, types, sizeof types);
    if (status != WN_OK) {
      code = cli_fail(ctx, status);
    } else if (json) {
      json_t *shape = json_array();
      for (int d = 0; d < e.ndim; d++) json_array_append_new(shape, json_integer(e.shape[d]));
      json_array_append_new(
          tensors, json_pack("{s:s, s:s, s:o}", "name", e.name, "dtype", types, "shape", shape));
    } else {
      char shape[128];
      shape_text(&e, shape, sizeof shape);
      printf("  %-44s %s %s\n", e.name, types, shape);
    }
  }
  if (!code && json) {
    json_t *j = json_pack("{s:s, s:I, s:i, s:o, s:O, s:o, s:o}", "model", dir, "parameters", (json_int_t)parameters,
                          "tensor_count", count, "tokenizer", tok ? json_string(wn_tokenizer_kind(tok)) : json_null(),
                          "mechanisms", uses, "config", json_loads(config, 0, NULL), "tensors", json_incref(tensors));
    code = cli_print_json(j);
  } else if (!code) {
    printf("\n%s\n", config);
  }
  json_decref(uses);
  json_decref(tensors);
  wn_tokenizer_destroy(tok);
  wn_text_free(config);
  wn_model_destroy(model);
  return code;
}

int cmd_info(int argc, char **argv) {
  struct cli_common common = CLI_COMMON_DEFAULTS;
  const char *model = NULL;
  struct cli_list dirs = {0};
  const struct cli_option options[] = {{.name = "model",
                                        .type = CLI_STRING,
                                        .out = &model,
                                        .metavar = "DIR",
                                        .help = "a checkpoint (or as an argument)"},
                                       CLI_COMMON_OPTIONS(&common)};
  const struct cli_spec spec = {
      .command = "winnow info",
      .summary = "Of a checkpoint: parameter count, tensors with their shapes, configuration. Without "
                 "one: version,\nCPU features, backends, libraries and memory.",
      .options = options,
      .option_count = CLI_COUNT(options),
      .positional = "[DIR]",
      .positional_max = 1};
  int code = cli_parse(&spec, argc, argv, &dirs);
  code = cli_model_argument(&spec, code, false, &dirs, &model);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_context_open(&common, &ctx);
  if (code) return code;
  code = model ? checkpoint(ctx, model, common.json) : machine(ctx, common.json);
  wn_context_destroy(ctx);
  return code;
}
