#include "counts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "ui.h"

#define DOCUMENT "{document}"

bool cli_counts_marks(const struct cli_counts *c) {
  return c->outside || c->texts.count > 0 || c->spans.count > 0;
}

static bool counts_read_span(const char *text, size_t *from, size_t *to) {
  char *end;
  if (text[0] < '0' || text[0] > '9') return false;
  *from = strtoul(text, &end, 10);
  if (*end != ':' || end[1] < '0' || end[1] > '9') return false;
  *to = strtoul(end + 1, &end, 10);
  return !*end && *from < *to && *to <= INT32_MAX;
}

/* The byte where character n of the text begins; the text's end if n is too large. */
static size_t counts_byte_of(const char *text, size_t n) {
  size_t at = 0;
  for (; text[at]; at++)
    if (((unsigned char)text[at] & 0xC0) != 0x80 && n-- == 0) break;
  return at;
}

int cli_counts_check(const char *command, const struct cli_counts *c, bool jsonl, const char *prompt, int code) {
  size_t from, to;
  if (code != CLI_GO) return code;
  if (c->by && !c->file) return cli_usage_error(command, "--counts-by needs --counts");
  if (c->file && !strcmp(c->file, "-"))
    return cli_usage_error(command, "--counts: standard output is the text's; expected a file");
  if (c->outside && !jsonl) return cli_usage_error(command, "--control-outside needs --jsonl and its {document}");
  if (cli_counts_marks(c) && !prompt)
    return cli_usage_error(command, "--control-text and --control-span are of --prompt, which is missing");
  for (int i = 0; i < c->spans.count; i++) {
    if (!counts_read_span(c->spans.items[i], &from, &to))
      return cli_usage_error(command, "--control-span \"%s\": expected A:B, characters A to B-1", c->spans.items[i]);
    if (!prompt[counts_byte_of(prompt, to - 1)])
      return cli_usage_error(command, "--control-span %s: --prompt ends before its character %zu", c->spans.items[i],
                             to - 1);
  }
  for (int i = 0; i < c->texts.count; i++) {
    if (!c->texts.items[i][0]) return cli_usage_error(command, "--control-text: the text is empty");
    if (!strstr(prompt, c->texts.items[i]))
      return cli_usage_error(command, "--control-text \"%s\": --prompt does not have it", c->texts.items[i]);
  }
  return CLI_GO;
}

/* Marks bytes from..to of the template in the prompt, except those of {document}. */
static void counts_mark(const struct cli_counts_prompt *p, size_t from, size_t to, uint8_t *marks) {
  const size_t after = p->document + (p->documented ? strlen(DOCUMENT) : 0);
  for (size_t i = from; i < to; i++) {
    if (!p->documented || i < p->document)
      marks[i] = 1;
    else if (i >= after)
      marks[i - after + p->document + p->document_bytes] = 1;
  }
}

static void counts_mark_text(const struct cli_counts_prompt *p, const char *text, uint8_t *marks) {
  for (const char *at = p->template; (at = strstr(at, text)); at++) {
    const size_t from = (size_t)(at - p->template);
    counts_mark(p, from, from + strlen(text), marks);
  }
}

static void counts_mark_all(const struct cli_counts *c, const struct cli_counts_prompt *p, uint8_t *marks) {
  if (c->outside) counts_mark(p, 0, strlen(p->template), marks);
  for (int i = 0; i < c->texts.count; i++) counts_mark_text(p, c->texts.items[i], marks);
  for (int i = 0; i < c->spans.count; i++) {
    size_t from = 0, to = 0;
    counts_read_span(c->spans.items[i], &from, &to);
    counts_mark(p, counts_byte_of(p->template, from), counts_byte_of(p->template, to), marks);
  }
}

/* A token is control if all of its text is; a token for white space, if that white space is. */
static bool counts_is_control(const struct cli_counts *c, const struct cli_counts_prompt *p, const uint8_t *marks,
                              int64_t begin, int64_t end) {
  if (begin < 0) return c->outside;
  if (begin == end) return (size_t)begin < p->bytes && marks[begin];
  for (int64_t i = begin; i < end; i++)
    if (!marks[i]) return false;
  return true;
}

int cli_counts_control(wn_context *ctx, const struct cli_counts *c, const wn_tokenizer *tok,
                       const struct cli_counts_prompt *p, uint8_t **control) {
  uint8_t *marks = calloc(p->bytes + 1, 1);
  int64_t *places = malloc((2 * p->count + 1) * sizeof *places);
  *control = calloc(p->count + 1, 1);
  int code = marks && places && *control ? 0 : cli_error("out of memory");
  if (!code && wn_tokens_align(ctx, tok, p->ids, p->count, p->text, p->bytes, places, places + p->count) != WN_OK)
    code = cli_error("the prompt: %s", wn_context_error(ctx));
  if (!code) counts_mark_all(c, p, marks);
  for (size_t i = 0; i < p->count && !code; i++)
    (*control)[i] = counts_is_control(c, p, marks, places[i], places[p->count + i]);
  free(marks), free(places);
  return code;
}

void cli_counts_head(FILE *f, const struct cli_counts *c, const wn_model_config *config) {
  fprintf(f, "document,index,id,context,content,kept");
  for (int64_t l = 0; c->by && l < config->layers; l++) {
    if (!strcmp(c->by, "layer")) fprintf(f, ",layer_%" PRId64, l);
    for (int64_t h = 0; !strcmp(c->by, "head") && h < config->heads; h++)
      fprintf(f, ",layer_%" PRId64 "_head_%" PRId64, l, h);
  }
  fputc('\n', f);
}

static double counts_mean(const int32_t *counts, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)counts[i];
  return sum / (double)n;
}

void cli_counts_row(FILE *f, const struct cli_counts *c, const wn_model_config *config, int64_t document,
                    const wn_generate_piece *piece) {
  const int64_t L = config->layers, H = config->heads;
  fprintf(f, "%" PRId64 ",%" PRId64 ",%" PRId32 ",%" PRId64 ",%" PRId64 ",%.8g", document, piece->index, piece->id,
          piece->context, piece->content, counts_mean(piece->counts, L * H));
  for (int64_t i = 0; c->by && !strcmp(c->by, "head") && i < L * H; i++) fprintf(f, ",%" PRId32, piece->counts[i]);
  for (int64_t l = 0; c->by && !strcmp(c->by, "layer") && l < L; l++)
    fprintf(f, ",%.8g", counts_mean(piece->counts + l * H, H));
  fputc('\n', f);
}
