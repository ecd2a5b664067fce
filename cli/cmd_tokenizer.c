/* winnow tokenizer: train a SentencePiece model; encode and decode text. */
#include "cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/tokenizer.h>
#include "args.h"
#include "sampling.h"
#include "ui.h"

static int train(int argc, char **argv) {
  struct cli_common common = CLI_COMMON_DEFAULTS;
  wn_tokenizer_train_options defaults;
  wn_tokenizer_train_options_init(&defaults, sizeof defaults);
  const char *output = NULL, *kind = defaults.kind;
  int64_t vocab = defaults.vocab_size, max_lines = 0;
  double coverage = 0.9995;
  bool no_bytes = false;
  struct cli_list inputs = {0};
  const struct cli_option options[] = {
      {.name = "out",
       .type = CLI_STRING,
       .out = &output,
       .metavar = "FILE",
       .help = "the model to write (.model)",
       .required = true},
      {.name = "vocab",
       .type = CLI_INT,
       .out = &vocab,
       .metavar = "N",
       .help = "tokens in the vocabulary",
       .min = 8,
       .max = 1 << 20},
      {.name = "kind", .type = CLI_STRING, .out = &kind, .metavar = "NAME", .help = "model", .choices = "unigram|bpe"},
      {.name = "coverage",
       .type = CLI_DOUBLE,
       .out = &coverage,
       .metavar = "X",
       .help = "share of the text's characters that get tokens of their own",
       .min = 0.9,
       .max = 1},
      {.name = "max-lines",
       .type = CLI_INT,
       .out = &max_lines,
       .metavar = "N",
       .help = "train on so many lines drawn at random; 0: all",
       .min = 0,
       .max = 1e15},
      {.name = "no-byte-fallback",
       .type = CLI_FLAG,
       .out = &no_bytes,
       .help = "no tokens for bytes: rare characters become <unk>"},
      CLI_COMMON_OPTIONS(&common)};
  const struct cli_spec spec = {.command = "winnow tokenizer train",
                                .summary =
                                    "Trains a SentencePiece tokenizer on UTF-8 text files. Text comes back from its "
                                    "tokens unchanged:\nnothing is normalised, newlines are tokens, and what has no "
                                    "token is written as bytes.",
                                .options = options,
                                .option_count = CLI_COUNT(options),
                                .positional = "FILE...",
                                .positional_min = 1,
                                .positional_max = 1 << 20};
  int code = cli_parse(&spec, argc, argv, &inputs);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_check_output(output, false);
  if (code == CLI_GO) code = cli_context_open(&common, &ctx);
  if (code) {
    cli_list_clear(&inputs);
    return code;
  }
  double start = cli_seconds();
  wn_tokenizer_train_options o = defaults;
  o.inputs = inputs.items;
  o.input_count = inputs.count;
  o.output = output;
  o.vocab_size = (int)vocab;
  o.kind = kind;
  o.coverage = coverage;
  o.byte_fallback = !no_bytes;
  o.max_sentences = max_lines;
  cli_note(&common, "training a %s tokenizer of %" PRId64 " tokens on %d file%s", kind, vocab, inputs.count,
           inputs.count == 1 ? "" : "s");
  wn_status status = wn_tokenizer_train(ctx, &o);
  wn_tokenizer *tok = NULL;
  if (status == WN_OK) status = wn_tokenizer_load(ctx, output, &tok);
  if (status != WN_OK) {
    code = cli_fail(ctx, status);
  } else if (common.json) {
    code = cli_print_json(json_pack("{s:s, s:s, s:i, s:f}", "tokenizer", output, "kind", kind, "vocab_size",
                                    wn_tokenizer_vocab_size(tok), "seconds", cli_seconds() - start));
  } else {
    printf("%s: %d tokens, %s, %.1f s\n", output, wn_tokenizer_vocab_size(tok), kind, cli_seconds() - start);
  }
  wn_tokenizer_destroy(tok);
  wn_context_destroy(ctx);
  cli_list_clear(&inputs);
  return code;
}

/* What encode and decode share: a tokenizer, one input, one output. */
struct request {
  struct cli_common common;
  const char *tokenizer, *out;
  struct cli_list files;
  wn_context *ctx;
  wn_tokenizer *tok;
  char *text;
  size_t bytes;
};

static int request_open(struct request *r) {
  int code = cli_context_open(&r->common, &r->ctx);
  if (code) return code;
  wn_status status = wn_tokenizer_load(r->ctx, r->tokenizer, &r->tok);
  if (status != WN_OK) return cli_fail(r->ctx, status);
  return cli_read_file(r->files.count ? r->files.items[0] : "-", &r->text, &r->bytes);
}
static void request_close(struct request *r) {
  free(r->text);
  wn_tokenizer_destroy(r->tok);
  wn_context_destroy(r->ctx);
  cli_list_clear(&r->files);
}
static const char *input_name(const struct request *r) {
  return r->files.count && strcmp(r->files.items[0], "-") ? r->files.items[0] : "standard input";
}

static int encode(int argc, char **argv) {
  struct request r = {.common = CLI_COMMON_DEFAULTS};
  bool bos = false, eos = false, count_only = false, special = false;
  const struct cli_option options[] = {
      {.name = "tokenizer",
       .type = CLI_STRING,
       .out = &r.tokenizer,
       .metavar = "SPEC",
       .help = CLI_TOKENIZER_HELP,
       .required = true},
      {.name = "bos", .type = CLI_FLAG, .out = &bos, .help = "begin with the document token"},
      {.name = "eos", .type = CLI_FLAG, .out = &eos, .help = "end with the end token"},
      {.name = "special",
       .type = CLI_FLAG,
       .out = &special,
       .help = "read special tokens in the text (\"<|im_end|>\"); else they are plain text"},
      {.name = "count", .type = CLI_FLAG, .out = &count_only, .help = "print only how many"},
      CLI_COMMON_OPTIONS(&r.common)};
  const struct cli_spec spec = {.command = "winnow tokenizer encode",
                                .summary = "Prints the tokens of a text file (or of standard input) as numbers.",
                                .options = options,
                                .option_count = CLI_COUNT(options),
                                .positional = "[FILE]",
                                .positional_max = 1};
  int code = cli_parse(&spec, argc, argv, &r.files);
  if (code == CLI_GO) code = request_open(&r);
  if (!code) {
    int32_t *ids = NULL;
    size_t count = 0;
    const wn_text_part whole = {r.text, r.bytes, special};
    wn_status status = wn_tokenizer_encode_parts(r.ctx, r.tok, &whole, 1, bos, eos, &ids, &count);
    if (status != WN_OK) {
      code = cli_error("%s: %s", input_name(&r), wn_context_error(r.ctx));
    } else if (r.common.json) {
      json_t *array = json_array();
      for (size_t i = 0; i < count && !count_only; i++) json_array_append_new(array, json_integer(ids[i]));
      json_t *j = json_pack("{s:I, s:I}", "count", (json_int_t)count, "bytes", (json_int_t)r.bytes);
      if (!count_only) json_object_set(j, "ids", array);
      json_decref(array);
      code = cli_print_json(j);
    } else if (count_only) {
      printf("%zu\n", count);
    } else {
      for (size_t i = 0; i < count; i++) printf("%s%d", i ? " " : "", ids[i]);
      putchar('\n');
    }
    wn_tokens_free(ids);
  }
  request_close(&r);
  return code;
}

/* Whole numbers between spaces, commas or brackets: what encode prints, with --json or without. */
static int parse_ids(const struct request *r, int32_t **out, size_t *count) {
  const char *p = r->text, *end = r->text + r->bytes;
  const char *name = input_name(r);
  json_t *j = *p == '{' ? json_loadb(r->text, r->bytes, 0, NULL) : NULL;
  json_t *array = json_object_get(j, "ids");
  size_t capacity = array ? json_array_size(array) : r->bytes / 2 + 1, n = 0;
  int32_t *ids = malloc((capacity + 1) * sizeof *ids);
  int code = ids ? 0 : cli_error("%s: out of memory", name);
  for (size_t i = 0; array && i < capacity && !code; i++) {
    json_int_t id = json_integer_value(json_array_get(array, i));
    if (!json_is_integer(json_array_get(array, i)) || id < 0 || id > INT32_MAX)
      code = cli_error("%s: \"ids\"[%zu] is not a token", name, i);
    else
      ids[n++] = (int32_t)id;
  }
  while (!array && !code && p < end) {
    if (strchr(" \t\r\n,[]", *p) && *p) {
      p++;
      continue;
    }
    char *stop = NULL;
    errno = 0;
    long long id = strtoll(p, &stop, 10);
    if (stop == p || errno || id < 0 || id > INT32_MAX || (*stop && !strchr(" \t\r\n,]", *stop)))
      code = cli_error("%s: not a token at byte %zu", name, (size_t)(p - r->text));
    else
      ids[n++] = (int32_t)id;
    p = stop;
  }
  json_decref(j);
  if (code) {
    free(ids);
    return code;
  }
  *out = ids;
  *count = n;
  return 0;
}

static int decode(int argc, char **argv) {
  struct request r = {.common = CLI_COMMON_DEFAULTS};
  const struct cli_option options[] = {{.name = "tokenizer",
                                        .type = CLI_STRING,
                                        .out = &r.tokenizer,
                                        .metavar = "SPEC",
                                        .help = CLI_TOKENIZER_HELP,
                                        .required = true},
                                       CLI_COMMON_OPTIONS(&r.common)};
  const struct cli_spec spec = {.command = "winnow tokenizer decode",
                                .summary =
                                    "Prints the text of tokens: numbers in a file (or on standard input), as encode "
                                    "prints them.",
                                .options = options,
                                .option_count = CLI_COUNT(options),
                                .positional = "[FILE]",
                                .positional_max = 1};
  int code = cli_parse(&spec, argc, argv, &r.files);
  if (code == CLI_GO) code = request_open(&r);
  int32_t *ids = NULL;
  size_t count = 0;
  if (!code) code = parse_ids(&r, &ids, &count);
  if (!code) {
    char *text = NULL;
    size_t bytes = 0;
    wn_status status = wn_tokenizer_decode(r.ctx, r.tok, ids, count, &text, &bytes);
    if (status != WN_OK) {
      code = cli_error("%s: %s", input_name(&r), wn_context_error(r.ctx));
    } else if (r.common.json) {
      json_t *string = json_stringn(text, bytes);
      if (string)
        code = cli_print_json(json_pack("{s:o, s:I}", "text", string, "count", (json_int_t)count));
      else
        code = cli_error("%s: the tokens are bytes that are no UTF-8 text: no JSON can hold them", input_name(&r));
    } else {
      fwrite(text, 1, bytes, stdout);
    }
    wn_text_free(text);
  }
  free(ids);
  request_close(&r);
  return code;
}

int cmd_tokenizer(int argc, char **argv) {
  static const struct cli_command commands[] = {
      {"train", "train a SentencePiece tokenizer on text", train},
      {"encode", "text to tokens", encode},
      {"decode", "tokens to text", decode},
  };
  return cli_dispatch("winnow tokenizer", "Tokenizers: bytes, SentencePiece models, byte-pair encoding.", commands,
                      CLI_COUNT(commands), argc, argv);
}
