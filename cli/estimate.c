#include "estimate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "files.h"
#include "ui.h"

static const char rows_head[] = "row,tokens,loss_sum,hits\n";

void cli_estimate_json(json_t *j, const char *name, const wn_estimate *e) {
  const struct {
    const char *end;
    double value;
  } numbers[] = {{"_stderr", e->error}, {"_low", e->low}, {"_high", e->high}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    char key[64];
    snprintf(key, sizeof key, "%s%s", name, numbers[i].end);
    json_object_set_new(j, key, cli_number(numbers[i].value));
  }
}

void cli_estimate_json_whole(json_t *j, const char *name, const wn_estimate *e) {
  json_object_set_new(j, name, cli_number(e->value));
  cli_estimate_json(j, name, e);
}

const char *cli_estimate_error(const wn_estimate *e, double unit, int decimals, char out[32]) {
  out[0] = 0;
  if (isfinite(e->error)) snprintf(out, 32, " +- %.*f", decimals, unit * e->error);
  return out;
}

const char *cli_estimate_interval(const wn_estimate *e, int decimals, char out[96]) {
  out[0] = 0;
  if (isfinite(e->error))
    snprintf(out, 96, " +- %.*f (95%%: %.*f to %.*f)", decimals, e->error, decimals, e->low, decimals, e->high);
  return out;
}

const char *cli_estimate_rows(uint64_t rows, const char *unit, char out[64]) {
  snprintf(out, 64, "%" PRIu64 " %s%s", rows, unit, rows == 1 ? "" : "s");
  return out;
}

int cli_rows_save(wn_context *ctx, const char *path, const wn_eval_rows *rows) {
  char *text = NULL;
  size_t bytes;
  FILE *f = open_memstream(&text, &bytes);
  if (!f) return cli_error("out of memory");
  fputs(rows_head, f);
  for (int64_t i = 0; i < rows->count; i++)
    fprintf(f, "%" PRId64 ",%.0f,%.17g,%.0f\n", i, rows->sums[i].tokens, rows->sums[i].loss, rows->sums[i].hits);
  int code = fclose(f) == 0 ? 0 : cli_error("out of memory");
  if (!code && wn_file_save(ctx, path, text, bytes) != WN_OK) code = cli_fail(ctx, WN_ERR_IO);
  free(text);
  return code;
}

/* Reads a line's three numbers after the row's. */
static bool rows_read_line(const char *line, int64_t number, wn_row_sums *row) {
  double *const fields[] = {&row->tokens, &row->loss, &row->hits};
  char *end;
  if (strtoll(line, &end, 10) != number) return false;
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    if (*end != ',') return false;
    const char *at = end + 1;
    *fields[i] = strtod(at, &end);
    if (end == at || !isfinite(*fields[i]) || *fields[i] < 0) return false;
  }
  return *end == 0 && row->tokens >= 1;
}

int cli_rows_read(wn_context *ctx, const char *path, wn_eval_rows *rows) {
  char *text = NULL;
  *rows = (wn_eval_rows){0};
  if (cli_read_lines(ctx, path, &text)) return 1;
  int64_t lines = 0;
  for (const char *c = text; *c; c++) lines += *c == '\n';
  int code = !strncmp(text, rows_head, sizeof rows_head - 1) && lines > 1
                 ? 0
                 : cli_error("%s: no rows of winnow eval --save-rows: expected the line %.*s and one for each row",
                             path, (int)sizeof rows_head - 2, rows_head);
  if (!code && !(rows->sums = calloc((size_t)lines, sizeof *rows->sums))) code = cli_error("out of memory");
  for (char *line = text + sizeof rows_head - 1, *end; !code && *line; line = end + 1) {
    end = strchr(line, '\n');
    if (end) *end = 0;
    if (end && rows_read_line(line, rows->count, &rows->sums[rows->count])) {
      rows->count++;
      continue;
    }
    code = cli_error("%s: line %" PRId64 ": expected row %" PRId64 ", its tokens, the sum of their losses, its hits",
                     path, rows->count + 2, rows->count);
    break;
  }
  if (code) free(rows->sums);
  wn_text_free(text);
  return code;
}
