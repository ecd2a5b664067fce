/* winnow analyze fits: fits the three curves of meaningful attention to the rows of a CSV. */
#include "analyze.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "files.h"

struct fits {
  struct cli_common common;
  const char *x, *y;
  double from;
};

static const struct cli_option fits_options[] = {
    CLI_OPTION(struct fits, x, "x", "COLUMN", "the context length's column"),
    CLI_OPTION(struct fits, y, "y", "COLUMN", "the column of the tokens needed"),
    CLI_OPTION(struct fits, from, "fit-from", "N", "the least context length of the rows to fit", .min = 0,
               .max = 1e12),
    CLI_COMMON_OPTIONS(struct fits, common)};

static const struct cli_spec fits_spec = {
    .command = "winnow analyze fits",
    .summary = "Fits square root, logarithm and line to the tokens needed against context length, a row each, as\n"
               "winnow generate --counts writes them: least squares, adjusted R2, AIC, MSE.",
    CLI_TABLE(fits_options),
    .positional = "FILE.csv",
    .positional_min = 1,
    .positional_max = 1};

struct fits_points {
  double *x, *y;
  int64_t count;
  size_t room[2];
};

/* Number of the column, from 0; -1: the head lacks it. */
static int fits_column(const char *head, const char *name) {
  const size_t bytes = strlen(name);
  int n = 0;
  for (const char *at = head;; at++, n++) {
    const size_t width = strcspn(at, ",\n\r");
    if (width == bytes && !memcmp(at, name, bytes)) return n;
    at += width;
    if (*at != ',') return -1;
  }
}

static bool fits_number(const char *line, int column, double *out) {
  char *end;
  for (; column > 0; column--) {
    line += strcspn(line, ",\n");
    if (*line != ',') return false;
    line++;
  }
  if (isspace((unsigned char)*line)) return false; /* an empty cell at the end: strtod would go on to the next line */
  *out = strtod(line, &end);
  return end != line && (*end == ',' || *end == '\n' || *end == '\r' || !*end) && isfinite(*out);
}

static int fits_read(const struct fits *f, const char *path, const char *text, struct fits_points *p) {
  const int x = fits_column(text, f->x), y = fits_column(text, f->y);
  int64_t line = 1;
  if (x < 0 || y < 0) return cli_error("%s:1: there is no column \"%s\"", path, x < 0 ? f->x : f->y);
  for (const char *at = strchr(text, '\n'); at && at[1]; at = strchr(at, '\n')) {
    double X, Y;
    at++, line++;
    if (at[strspn(at, "\r")] == '\n' || !at[strspn(at, "\r")]) continue;
    if (!fits_number(at, x, &X) || !fits_number(at, y, &Y) || X < 0)
      return cli_error("%s:%" PRId64 ": expected numbers in the columns \"%s\" and \"%s\"", path, line, f->x, f->y);
    if (X < f->from) continue;
    if (CLI_GROW(&p->x, p->count, 1, &p->room[0]) || CLI_GROW(&p->y, p->count, 1, &p->room[1])) return 1;
    p->x[p->count] = X, p->y[p->count++] = Y;
  }
  if (p->count < 3) return cli_error("%s: %" PRId64 " rows, a curve needs at least 3", path, p->count);
  return 0;
}

static int fits_report(const struct fits *f, const char *path, const wn_fit *fits) {
  json_t *list = json_array();
  int best = 0;
  for (int k = 1; k < WN_FIT_COUNT; k++)
    if (fits[k].aic < fits[best].aic) best = k;
  for (int k = 0; k < WN_FIT_COUNT; k++)
    json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f, s:o, s:f}", "curve", wn_fit_name((wn_fit_kind)k),
                                          "intercept", fits[k].intercept, "slope", fits[k].slope, "r2", fits[k].r2,
                                          "adjusted_r2", fits[k].adjusted_r2, "aic", cli_number(fits[k].aic), "mse",
                                          fits[k].mse));
  json_t *json = json_pack("{s:o, s:I, s:s, s:o}", "file", cli_text(path), "rows", (json_int_t)fits[0].n, "best",
                           wn_fit_name((wn_fit_kind)best), "fits", list);
  if (f->common.json) return cli_print_json(json);
  json_decref(json);
  printf("%s: %" PRId64
         " rows, %s against %s\n\ncurve        a             b             adjusted R2            AIC     "
         "      MSE\n",
         path, fits[0].n, f->y, f->x);
  for (int k = 0; k < WN_FIT_COUNT; k++)
    printf("%-12s%-14.6g%-14.6g%11.4f%15.2f%14.4f%s\n", wn_fit_name((wn_fit_kind)k), fits[k].intercept, fits[k].slope,
           fits[k].adjusted_r2, fits[k].aic, fits[k].mse, k == best ? "  best" : "");
  return 0;
}

int analyze_fits(int argc, char **argv) {
  struct fits f = {.common = CLI_COMMON_DEFAULTS, .x = "context", .y = "kept"};
  struct cli_list files = {0};
  struct fits_points points = {0};
  wn_context *ctx = NULL;
  wn_fit fits[WN_FIT_COUNT];
  char *text = NULL;
  int code = cli_parse(&fits_spec, argc, argv, &f, &files);
  const char *path = code == CLI_GO ? files.items[0] : NULL;
  cli_list_clear(&files);
  if (code == CLI_GO) code = cli_context_open(&f.common, &ctx);
  if (!code) code = cli_read_lines(ctx, path, &text);
  if (!code) code = fits_read(&f, path, text, &points);
  for (int k = 0; k < WN_FIT_COUNT && !code; k++)
    if (wn_fit_curve(ctx, (wn_fit_kind)k, points.x, points.y, points.count, &fits[k]) != WN_OK)
      code = cli_error("%s: %s", path, wn_context_error(ctx));
  if (!code) code = fits_report(&f, path, fits);
  free(points.x), free(points.y);
  wn_text_free(text);
  wn_context_destroy(ctx);
  return code;
}
