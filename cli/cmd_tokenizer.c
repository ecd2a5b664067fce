/* winnow tokenizer: trains a SentencePiece model; encodes and decodes text. */
#include "cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/tokenizer.h>
#include "sampling.h"
#include "files.h"
#include "ui.h"

struct tokenizer_train {
  struct cli_common common;
  const char *output, *kind;
  int64_t vocab, max_lines;
  double coverage;
  bool no_bytes;
};

static const struct cli_option tokenizer_train_options[] = {
    CLI_OPTION(struct tokenizer_train, output, "out", "FILE", "the model to write (.model)", .required = true),
    CLI_OPTION(struct tokenizer_train, vocab, "vocab", "N", "tokens in the vocabulary", .min = 8, .max = 1 << 20),
    CLI_OPTION(struct tokenizer_train, kind, "kind", "NAME", "model", .choices = "unigram|bpe"),
    CLI_OPTION(struct tokenizer_train, coverage, "coverage", "X",
               "share of the text's characters that get tokens of their own", .min = 0.98, .max = 1),
    CLI_OPTION(struct tokenizer_train, max_lines, "max-lines", "N", "lines to train on, drawn at random; 0: all",
               .min = 0, .max = 1e15),
    CLI_OPTION(struct tokenizer_train, no_bytes, "no-byte-fallback", NULL,
               "no tokens for bytes: rare characters become <unk>"),
    CLI_COMMON_OPTIONS(struct tokenizer_train, common)};

static const struct cli_spec tokenizer_train_spec = {
    .command = "winnow tokenizer train",
    .summary = "Trains a SentencePiece tokenizer on UTF-8 text files. Decoding restores a text exactly: nothing is\n"
               "normalised, newlines are tokens, and characters without a token are encoded as bytes.",
    CLI_TABLE(tokenizer_train_options),
    .positional = "FILE...",
    .positional_min = 1,
    .positional_max = 1 << 20};

static int tokenizer_train_run(wn_context *ctx, const struct tokenizer_train *t, wn_tokenizer_train_options *o) {
  const double start = cli_seconds();
  wn_tokenizer *tok = NULL;
  int code = 0;
  cli_note(&t->common, "training a %s tokenizer of %" PRId64 " tokens on %d file%s", t->kind, t->vocab, o->input_count,
           o->input_count == 1 ? "" : "s");
  wn_status status = wn_tokenizer_train(ctx, o);
  if (status == WN_OK) status = wn_tokenizer_load(ctx, t->output, &tok);
  if (status != WN_OK) {
    code = cli_fail(ctx, status);
  } else if (t->common.json) {
    code = cli_print_json(json_pack("{s:o, s:s, s:i, s:f}", "tokenizer", cli_text(t->output), "kind", t->kind,
                                    "vocab_size", wn_tokenizer_vocab_size(tok), "seconds", cli_seconds() - start));
  } else {
    printf("%s: %d tokens, %s, %.1f s\n", t->output, wn_tokenizer_vocab_size(tok), t->kind, cli_seconds() - start);
  }
  wn_tokenizer_destroy(tok);
  return code;
}

static int tokenizer_train(int argc, char **argv) {
  wn_tokenizer_train_options o;
  struct cli_list inputs = {0};
  wn_context *ctx = NULL;
  wn_tokenizer_train_options_init(&o, sizeof o);
  struct tokenizer_train t = {.common = CLI_COMMON_DEFAULTS, .kind = o.kind, .vocab = o.vocab_size, .coverage = 0.9995};
  int code = cli_parse(&tokenizer_train_spec, argc, argv, &t, &inputs);
  if (code == CLI_GO) code = cli_check_output(t.output, false);
  if (code == CLI_GO) code = cli_context_open(&t.common, &ctx);
  o.inputs = inputs.items;
  o.input_count = inputs.count;
  o.output = t.output;
  o.vocab_size = (int)t.vocab;
  o.kind = t.kind;
  o.coverage = t.coverage;
  o.byte_fallback = !t.no_bytes;
  o.max_sentences = t.max_lines;
  if (!code) code = tokenizer_train_run(ctx, &t, &o);
  wn_context_destroy(ctx);
  cli_list_clear(&inputs);
  return code;
}

/* What encode and decode share: a tokenizer, one input, one output. */
struct coding {
  struct cli_common common;
  const char *tokenizer;
  bool bos, eos, special, count_only; /* for encode */
  struct cli_list files;
  wn_context *ctx;
  wn_tokenizer *tok;
  char *text;
  size_t bytes;
};

static int coding_open(struct coding *r) {
  int code = cli_context_open(&r->common, &r->ctx);
  if (code) return code;
  wn_status status = wn_tokenizer_load(r->ctx, r->tokenizer, &r->tok);
  if (status != WN_OK) return cli_fail(r->ctx, status);
  return cli_read_text(r->ctx, r->files.count ? r->files.items[0] : "-", &r->text, &r->bytes);
}
static void coding_close(struct coding *r) {
  wn_text_free(r->text);
  wn_tokenizer_destroy(r->tok);
  wn_context_destroy(r->ctx);
  cli_list_clear(&r->files);
}
static const char *tokenizer_input_name(const struct coding *r) {
  return r->files.count && strcmp(r->files.items[0], "-") ? r->files.items[0] : "standard input";
}

static const struct cli_option tokenizer_encode_options[] = {
    CLI_OPTION(struct coding, tokenizer, "tokenizer", "SPEC", CLI_TOKENIZER_HELP, .required = true),
    CLI_OPTION(struct coding, bos, "bos", NULL, "begin with the document token"),
    CLI_OPTION(struct coding, eos, "eos", NULL, "end with the end token"),
    CLI_OPTION(struct coding, special, "special", NULL,
               "recognise special tokens in the text (\"<|im_end|>\"); else they are plain text"),
    CLI_OPTION(struct coding, count_only, "count", NULL, "print only the number of tokens"),
    CLI_COMMON_OPTIONS(struct coding, common)};

static const struct cli_spec tokenizer_encode_spec = {
    .command = "winnow tokenizer encode",
    .summary = "Prints the tokens of a text file (or of standard input) as numbers.",
    CLI_TABLE(tokenizer_encode_options),
    CLI_OPTIONAL("[FILE]")};

static int tokenizer_print_ids(const struct coding *r, const int32_t *ids, size_t count) {
  if (r->common.json) {
    json_t *j = json_pack("{s:I, s:I}", "count", (json_int_t)count, "bytes", (json_int_t)r->bytes);
    json_t *array = json_array();
    for (size_t i = 0; i < count && !r->count_only; i++) json_array_append_new(array, json_integer(ids[i]));
    if (!r->count_only) json_object_set(j, "ids", array);
    json_decref(array);
    return cli_print_json(j);
  }
  if (r->count_only) {
    printf("%zu\n", count);
    return 0;
  }
  for (size_t i = 0; i < count; i++) printf("%s%d", i ? " " : "", ids[i]);
  putchar('\n');
  return 0;
}

static int tokenizer_encode(int argc, char **argv) {
  struct coding r = {.common = CLI_COMMON_DEFAULTS};
  int32_t *ids = NULL;
  size_t count = 0;
  int code = cli_parse(&tokenizer_encode_spec, argc, argv, &r, &r.files);
  if (code == CLI_GO) code = coding_open(&r);
  if (!code) {
    const wn_text_part whole = {r.text, r.bytes, r.special};
    const wn_status status = wn_tokenizer_encode_parts(r.ctx, r.tok, &whole, 1, r.bos, r.eos, &ids, &count);
    code = status == WN_OK ? tokenizer_print_ids(&r, ids, count)
                           : cli_error("%s: %s", tokenizer_input_name(&r), wn_context_error(r.ctx));
  }
  wn_tokens_free(ids);
  coding_close(&r);
  return code;
}

/* Parses the object that encode --json prints; *out stays NULL if the text does not begin like one. */
static int tokenizer_parse_object(const struct coding *r, json_t **out) {
  const char *name = tokenizer_input_name(r);
  json_error_t error;
  if (r->text[strspn(r->text, " \t\r\n")] != '{') return 0;
  *out = json_loadb(r->text, r->bytes, 0, &error);
  if (!*out) return cli_error("%s:%d:%d: %s", name, error.line, error.column, error.text);
  if (json_is_array(json_object_get(*out, "ids"))) return 0;
  return cli_error("%s: \"ids\" is missing or not a list of tokens", name);
}

/* Parses whole numbers between spaces, commas or brackets: what encode prints, with --json or without. */
static int tokenizer_parse_ids(const struct coding *r, int32_t **out, size_t *count) {
  const char *p = r->text, *end = r->text + r->bytes;
  const char *name = tokenizer_input_name(r);
  json_t *j = NULL;
  int code = tokenizer_parse_object(r, &j);
  json_t *array = json_object_get(j, "ids");
  size_t capacity = array ? json_array_size(array) : r->bytes / 2 + 1, n = 0;
  int32_t *ids = malloc((capacity + 1) * sizeof *ids);
  if (!code && !ids) code = cli_error("%s: out of memory", name);
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

static const struct cli_option tokenizer_decode_options[] = {
    CLI_OPTION(struct coding, tokenizer, "tokenizer", "SPEC", CLI_TOKENIZER_HELP, .required = true),
    CLI_COMMON_OPTIONS(struct coding, common)};

static const struct cli_spec tokenizer_decode_spec = {
    .command = "winnow tokenizer decode",
    .summary = "Prints the text of tokens: numbers in a file (or on standard input), as encode "
               "prints them.",
    CLI_TABLE(tokenizer_decode_options),
    CLI_OPTIONAL("[FILE]")};

static int tokenizer_print_text(const struct coding *r, const char *text, size_t bytes, size_t count) {
  if (!r->common.json) {
    fwrite(text, 1, bytes, stdout);
    return 0;
  }
  json_t *string = json_stringn(text, bytes);
  if (!string)
    return cli_error("%s: the tokens are bytes that are no UTF-8 text: no JSON can hold them", tokenizer_input_name(r));
  return cli_print_json(json_pack("{s:o, s:I}", "text", string, "count", (json_int_t)count));
}

static int tokenizer_decode(int argc, char **argv) {
  struct coding r = {.common = CLI_COMMON_DEFAULTS};
  int32_t *ids = NULL;
  char *text = NULL;
  size_t count = 0, bytes = 0;
  int code = cli_parse(&tokenizer_decode_spec, argc, argv, &r, &r.files);
  if (code == CLI_GO) code = coding_open(&r);
  if (!code) code = tokenizer_parse_ids(&r, &ids, &count);
  if (!code) {
    const wn_status status = wn_tokenizer_decode(r.ctx, r.tok, ids, count, &text, &bytes);
    code = status == WN_OK ? tokenizer_print_text(&r, text, bytes, count)
                           : cli_error("%s: %s", tokenizer_input_name(&r), wn_context_error(r.ctx));
  }
  wn_text_free(text);
  free(ids);
  coding_close(&r);
  return code;
}

int cmd_tokenizer(int argc, char **argv) {
  static const struct cli_command commands[] = {
      {"train", "train a SentencePiece tokenizer on text", tokenizer_train},
      {"encode", "text to tokens", tokenizer_encode},
      {"decode", "tokens to text", tokenizer_decode},
  };
  return cli_dispatch("winnow tokenizer", "Tokenizers: bytes, SentencePiece models, byte-pair encoding.", commands,
                      CLI_COUNT(commands), argc, argv);
}
