/* winnow serve: serves a model over HTTP, in the form of the OpenAI API. */
#include "cmd.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <winnow/serve.h>
#include "access_file.h"
#include "files.h"
#include "load.h"
#include "serve_models.h"
#include "signals.h"

struct serve_request {
  struct cli_common common;
  struct cli_loading load;
  struct cli_list models;
  const char *host, *name, *key_file, *access_log, *memory, *cache_memory, *prefix_memory, *origins, *pin;
  int64_t port, context, slots, queue, connections, draft;
  double timeout;
};

static const struct cli_option serve_options[] = {
    CLI_OPTION(
        struct serve_request, models, "model", "[NAME=]DIR",
        "the checkpoint (or as an argument); several: requests choose by name, each is loaded when it is wanted"),
    CLI_OPTION(
        struct serve_request, memory, "memory", "BYTES",
        "of several models' weights, each with --cache-memory, else --prefix-memory: the least recently used one "
        "leaves; else no limit"),
    CLI_CHECK_OPTION(struct serve_request, load.check),
    CLI_WEIGHTS_OPTION(struct serve_request, load.weights),
    CLI_ADAPTER_OPTION(struct serve_request, load.adapter),
    CLI_OPTION(struct serve_request, host, "host", "ADDRESS",
               "the address to listen on; on others than this machine's own nothing is encrypted"),
    CLI_OPTION(struct serve_request, port, "port", "N", "the port; 0: any that is free", .min = 0, .max = 65535),
    CLI_OPTION(struct serve_request, name, "name", "NAME", "the model's name in answers; else its folder or file"),
    CLI_OPTION(struct serve_request, key_file, "api-key-file", "FILE",
               "a file with keys, one a line, of which requests must have one; without it all are answered"),
    CLI_OPTION(struct serve_request, access_log, "access-log", "FILE",
               "a line of JSON for each request, added to this file; -: standard error"),
    CLI_OPTION(struct serve_request, origins, "allow-origin", "ORIGIN[,ORIGIN..]",
               "web pages of these origins may send requests beside the server's own; \"*\": all"),
    CLI_OPTION(struct serve_request, context, "context", "N",
               "tokens of a prompt and its answer together; 0: the model's context", .min = 0, .max = 1 << 24),
    CLI_OPTION(struct serve_request, slots, "slots", "N", "answers that are written at a time", .min = 1, .max = 4096),
    CLI_DRAFT_OPTION(struct serve_request, draft),
    CLI_DRAFT_MODEL_OPTION(struct serve_request, load.draft_model),
    CLI_OPTION(struct serve_request, queue, "queue", "N", "requests at a time; further ones get 429", .min = 1,
               .max = 65536),
    CLI_OPTION(struct serve_request, connections, "connections", "N",
               "connections at a time; beyond it slow and idle ones give way", .min = 1, .max = 65536),
    CLI_OPTION(struct serve_request, timeout, "timeout", "SECONDS",
               "of a request, from its arrival to its end; 0: no limit", .min = 0, .max = 1e9),
    CLI_OPTION(struct serve_request, cache_memory, "cache-memory", "BYTES",
               "of all key-value caches together, such as 2GiB: answers beyond it wait; else no limit"),
    CLI_OPTION(struct serve_request, prefix_memory, "prefix-memory", "BYTES",
               "for states of prompts that have been read, for prompts with the same beginning; 0: none are kept"),
    CLI_OPTION(struct serve_request, load.tokenizer, "tokenizer", "SPEC", CLI_TOKENIZER_HELP "; else the model's own"),
    CLI_ATTENTION_OPTIONS(struct serve_request, load.attention),
    CLI_BUDGETS_OPTIONS(struct serve_request, load.budgets),
    CLI_PIN_OPTION(struct serve_request, pin),
    CLI_CACHE_OPTION(struct serve_request, load.budgets),
    CLI_COMMON_OPTIONS(struct serve_request, common)};

static const struct cli_spec serve_spec = {
    .command = "winnow serve",
    .summary =
        "Answers HTTP requests in the shapes of the OpenAI API: /v1/completions, /v1/chat/completions, "
        "/v1/embeddings,\n"
        "/v1/models, /tokenize, /detokenize, /apply-template, /tokenizer_info, /health, /metrics, /slots. A request "
        "may say how "
        "much\n"
        "of its context is kept: \"winnow\": {\"budgets\": 64, \"policy\": \"h2o\"}. --budgets is for those that do "
        "not.",
    CLI_TABLE(serve_options),
    CLI_OPTIONAL("[MODEL]"),
    .epilog = "Ctrl-C stops it. SIGHUP opens the access log again and reads the file of keys again."};

/* Takes the keys that the file has now; if it is bad the old ones stay, and one line says so. */
static void serve_read_keys(const struct serve_request *r, wn_server *server) {
  wn_context *ctx; /* the other one is the server's */
  const wn_context_options options = {.size = sizeof options, .threads = 1};
  char *keys = NULL;
  size_t bytes = 0;
  wn_status status = wn_context_create(&options, &ctx);
  if (status == WN_OK) status = wn_file_load(ctx, r->key_file, 0, &keys, &bytes);
  if (status == WN_OK && strlen(keys) == bytes) status = wn_server_set_keys(ctx, server, keys);
  if (status != WN_OK || strlen(keys) < bytes)
    cli_warning("%s; the keys stay as they were", status != WN_OK ? wn_context_error(ctx) : "the keys have a NUL byte");
  else
    cli_note(&r->common, "%s: the keys have been read again", r->key_file);
  wn_text_free(keys);
  wn_context_destroy(ctx);
}

/* Waits until a signal asks for the end. */
static void serve_wait(wn_context *ctx, const struct serve_request *r, wn_server *server, struct cli_access_file *log) {
  while (!wn_context_cancelled(ctx)) {
    usleep(100000);
    if (!cli_signals_reload()) continue;
    cli_access_file_again(log);
    if (r->key_file) serve_read_keys(r, server);
  }
}

/* Reads an option in bytes; CLI_GO, or 2 after reporting. */
static int serve_bytes(const char *name, const char *text, uint64_t *out) {
  double bytes = 0;
  if (text && strcmp(text, "0") != 0 && !wn_bytes_parse(text, &bytes))
    return cli_usage_error(serve_spec.command, "--%s: \"%s\" is not a number of bytes, such as 900kB, 2GB or 512MiB",
                           name, text);
  *out = (uint64_t)bytes;
  return CLI_GO;
}

/* The limits in bytes. */
struct serve_limits {
  uint64_t memory, cache, prefix;
};

/* Serves until a signal comes. */
static int serve_answer(wn_context *ctx, const struct serve_request *r, struct serve_models *models,
                        const struct cli_loaded *in, const char *keys, struct cli_access_file *log,
                        const struct serve_limits *limits) {
  wn_server *server;
  const wn_server_options options = {.size = sizeof options,
                                     .address = r->host,
                                     .port = (int)r->port,
                                     .name = models->names[0],
                                     .api_key = keys,
                                     .context = r->context,
                                     .slots = (int)r->slots,
                                     .draft = r->draft > 0 || !in->draft ? (int)r->draft : CLI_DRAFT_BY_MODEL,
                                     .draft_model = in->draft,
                                     .queue = (int)r->queue,
                                     .connections = (int)r->connections,
                                     .timeout = r->timeout,
                                     .origins = r->origins,
                                     .access = r->access_log ? cli_access_file_write : NULL,
                                     .access_user = log,
                                     .cache_memory = limits->cache,
                                     .prefix_memory = limits->prefix,
                                     .budgets = in->budgets.layers > 0 ? &in->budgets : NULL,
                                     .pin_system = !strcmp(r->pin, "system"),
                                     .cache = in->budgets.cache};
  cli_signals_begin(ctx);
  const wn_server_models several = {.size = sizeof several,
                                    .count = models->count,
                                    .names = (const char *const *)models->names,
                                    .bytes = models->bytes,
                                    .load = serve_models_load,
                                    .user = models,
                                    .memory = limits->memory};
  const wn_status status = models->count > 1 ? wn_server_start_models(ctx, &several, &options, &server)
                                             : wn_server_start(ctx, in->model, in->tok, &options, &server);
  if (status != WN_OK) {
    cli_signals_end();
    return cli_fail(ctx, status);
  }
  const bool six = strchr(r->host, ':') != NULL;
  if (r->common.json) {
    json_t *names = json_array();
    for (int i = 0; i < models->count; i++) json_array_append_new(names, cli_text(models->names[i]));
    cli_print_json(json_pack("{s:o, s:i, s:o, s:o}", "host", cli_text(r->host), "port", wn_server_port(server), "model",
                             cli_text(options.name), "models", names));
  } else {
    printf("serving ");
    for (int i = 0; i < models->count; i++) printf("%s%s", i ? ", " : "", models->names[i]);
    printf(" at http://%s%s%s:%d\n", six ? "[" : "", r->host, six ? "]" : "", wn_server_port(server));
  }
  fflush(stdout);
  if (r->key_file || r->access_log) cli_signals_begin_reload();
  serve_wait(ctx, r, server, log);
  wn_server_stop(server);
  cli_signals_end();
  cli_note(&r->common, "stopped");
  return 0;
}

static int serve_run(wn_context *ctx, const struct serve_request *r, struct serve_models *models,
                     const struct cli_loaded *in) {
  struct cli_access_file log = {0};
  char *keys = NULL;
  struct serve_limits limits = {0};
  int code = serve_bytes("memory", r->memory, &limits.memory);
  if (code == CLI_GO) code = serve_bytes("cache-memory", r->cache_memory, &limits.cache);
  if (code == CLI_GO) code = serve_bytes("prefix-memory", r->prefix_memory, &limits.prefix);
  if (code == CLI_GO && r->key_file) code = cli_read_lines(ctx, r->key_file, &keys);
  if (code == CLI_GO && r->access_log) code = cli_access_file_open(&log, r->access_log);
  if (code == CLI_GO) code = serve_answer(ctx, r, models, in, keys, &log, &limits);
  cli_access_file_close(&log);
  wn_text_free(keys);
  return code;
}

/* The argument, and every --model. */
static int serve_parse(int argc, char **argv, struct serve_request *r, struct serve_models *models) {
  struct cli_list given = {0};
  int code = cli_parse(&serve_spec, argc, argv, r, &given);
  const int all = given.count + r->models.count;
  struct cli_list list = {.items = calloc((size_t)all + 1, sizeof(char *))};
  if (code == CLI_GO && !list.items) code = cli_error("out of memory");
  if (code == CLI_GO) {
    for (int i = 0; i < given.count; i++) list.items[list.count++] = given.items[i];
    for (int i = 0; i < r->models.count; i++) list.items[list.count++] = r->models.items[i];
    code = all == 0                         ? cli_model_missing(&serve_spec)
           : all > 1 && r->load.draft_model ? cli_usage_error(serve_spec.command, "--draft-model is for one model")
           : all == 1 && r->memory          ? cli_usage_error(serve_spec.command, "--memory is for several models")
                                            : serve_models_read(serve_spec.command, &list, r->name, models);
  }
  free(list.items);
  cli_list_clear(&given);
  return code;
}

int cmd_serve(int argc, char **argv) {
  struct serve_request r = {.common = CLI_COMMON_DEFAULTS,
                            .load = CLI_LOADING_DEFAULTS,
                            .host = "127.0.0.1",
                            .port = 8080,
                            .prefix_memory = "256MiB",
                            .pin = "none",
                            .slots = 8,
                            .queue = 64,
                            .connections = 512,
                            .timeout = 600};
  struct serve_models models = {.common = &r.common, .load = &r.load};
  struct cli_loaded in = {0};
  wn_context *ctx = NULL;
  int code = serve_parse(argc, argv, &r, &models);
  if (code == CLI_GO) code = cli_budgets_check(serve_spec.command, &r.load.budgets);
  if (code == CLI_GO) code = cli_context_open(&r.common, &ctx);
  if (!code && models.count == 1) {
    r.load.model = models.paths[0];
    code = cli_load(ctx, serve_spec.command, &r.common, &r.load, true, &in);
  }
  if (!code) code = serve_run(ctx, &r, &models, &in);
  cli_loaded_clear(&in);
  wn_context_destroy(ctx);
  serve_models_clear(&models);
  cli_list_clear(&r.models);
  cli_list_clear(&r.load.attention.sets);
  return code;
}
