/* Pages: a style sheet, a script and a plotting library (built in), the figures as JSON, and matrices as separate
 * tiles, so that opening the page decodes only what its first view needs. A content security policy forbids the page to
 * load anything. */
#include "report/html.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/options.h"

wn_status wn_page_no_memory(wn_page *page) {
  return wn_fail(page->ctx, WN_ERR_MEMORY, "out of memory: a page");
}

wn_status wn_page_list(wn_page *page, json_t *list, json_t *value) {
  return json_array_append_new(list, value) ? wn_page_no_memory(page) : WN_OK;
}

wn_status wn_page_create(wn_context *ctx, const wn_page_options *options, wn_page **out) {
  WN_CHECK_CALL(WN_POINTER(out));
  *out = NULL;
  wn_page_options own;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_page_options, options, &own));
  options = &own;
  if (!options->title) return wn_fail(ctx, WN_ERR_ARGUMENT, "page: a title is needed");
  wn_page *page;
  WN_TRY(WN_ALLOC(ctx, "page", 1, &page));
  wn_handle_mark(page, WN_HANDLE_PAGE);
  page->ctx = ctx;
  page->limit = options->limit ? options->limit : WN_PAGE_LIMIT;
  page->title = wn_strdup(ctx, options->title);
  page->lead = wn_strdup(ctx, options->lead ? options->lead : "");
  page->live = options->live ? wn_strdup(ctx, options->live) : NULL;
  page->folder = options->figures ? wn_strdup(ctx, options->figures) : NULL;
  page->figures = json_array();
  page->texts = json_array();
  page->means = json_array();
  wn_status status = page->title && page->lead && page->figures && page->texts && page->means &&
                             (!options->figures || page->folder) && (!options->live || page->live)
                         ? WN_OK
                         : wn_page_no_memory(page);
  if (status == WN_OK && page->folder) status = wn_make_dirs(ctx, page->folder);
  if (status != WN_OK) {
    wn_page_destroy(page);
    return status;
  }
  *out = page;
  return WN_OK;
}

void wn_page_destroy(wn_page *page) {
  WN_CHECK_OR(, WN_HANDLE(page, PAGE));
  for (int i = 0; i < page->tile_count; i++) wn_free(page->tiles[i].data);
  wn_free(page->tiles);
  wn_free(page->title);
  wn_free(page->lead);
  wn_free(page->live);
  wn_free(page->folder);
  wn_free(page->body.data);
  wn_free(page->contents.data);
  json_decref(page->figures);
  json_decref(page->texts);
  json_decref(page->means);
  wn_free(page);
}

wn_status wn_page_add_section(wn_page *page, const char *title) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  WN_CHECK_ARGUMENTS(page->ctx, WN_POINTER(title));
  page->sections++;
  wn_text_add(&page->body, "<h2 id=\"part-%d\">", page->sections);
  wn_html_add(&page->body, title);
  wn_text_add(&page->body, "</h2>\n");
  wn_text_add(&page->contents, "<li><a href=\"#part-%d\">", page->sections);
  wn_html_add(&page->contents, title);
  wn_text_add(&page->contents, "</a></li>\n");
  return page->body.failed || page->contents.failed ? wn_page_no_memory(page) : WN_OK;
}

/* Adds a figure's heading, its description, the place where the script draws it, and, to be opened, how it was made. */
wn_status wn_page_frame(wn_page *page, const wn_figure *f, const char *files, json_t *json) {
  struct wn_text *t = &page->body;
  wn_text_add(t, "<section class=\"figure%s\" id=\"%s\" aria-labelledby=\"title-%s\">\n<h3 id=\"title-%s\">",
              f->small ? " small" : "", f->id, f->id, f->id);
  wn_html_add(t, f->title);
  wn_text_add(t, "</h3>\n<p class=\"about\">");
  wn_html_add(t, f->about);
  wn_text_add(
      t,
      "</p>\n<div class=\"plot\" id=\"plot-%s\"></div>\n<details class=\"how\"><summary>How it was made</summary>"
      "<code>",
      f->id);
  wn_html_add(t, f->command);
  wn_text_add(t, "</code>");
  if (page->folder && files) {
    wn_text_add(t, "<br>Files: <code>");
    wn_html_add(t, files);
    wn_text_add(t, "</code>");
  }
  wn_text_add(t, "</details>\n</section>\n");
  if (!json || t->failed || json_array_append_new(page->figures, json)) return wn_page_no_memory(page);
  return WN_OK;
}

wn_status wn_page_add_figure(wn_page *page, const wn_figure *f) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  WN_CHECK_ARGUMENTS(page->ctx, WN_POINTER_AS("figure", f));
  char path[4096], files[600];
  WN_TRY(wn_figure_check(page->ctx, f));
  if (page->folder) {
    WN_TRY(wn_figure_path(page->ctx, page->folder, f->id, ".svg", path, sizeof path));
    WN_TRY(wn_figure_save_svg(page->ctx, f, path));
    WN_TRY(wn_figure_path(page->ctx, page->folder, f->id, ".csv", path, sizeof path));
    WN_TRY(wn_figure_save_csv(page->ctx, f, path));
  }
  snprintf(files, sizeof files, "%.250s.svg %.250s.csv", f->id, f->id);
  json_t *json = wn_figure_json(f);
  snprintf(path, sizeof path, "%.250s.csv", f->id);
  if (json && page->folder) json_object_set_new(json, "csv", json_string(path));
  return wn_page_frame(page, f, files, json);
}

/* The first column has names, even if they look like numbers, as of runs named by dates. */
static json_t *page_cell(const char *s, int column) {
  if (!s || !s[0]) return json_null();
  if (column == 0) return wn_html_string(s);
  json_t *number = json_loads(s, JSON_DECODE_ANY, NULL);
  if (json_is_number(number)) return number;
  json_decref(number);
  return wn_html_string(s);
}

wn_status wn_page_add_table(wn_page *page, const wn_figure *what, const char *const *head, int columns,
                            const char *const *cells, int64_t rows) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  WN_CHECK_ARGUMENTS(page->ctx, WN_POINTER(what), WN_ARRAY(head, columns), WN_ARRAY(cells, rows));
  WN_TRY(wn_figure_check(page->ctx, what));
  char path[4096], files[300];
  if (page->folder) {
    WN_TRY(wn_figure_path(page->ctx, page->folder, what->id, ".csv", path, sizeof path));
    WN_TRY(wn_table_save_csv(page->ctx, head, columns, cells, rows, path));
  }
  snprintf(files, sizeof files, "%.250s.csv", what->id);
  json_t *names = json_array(), *lines = json_array();
  for (int c = 0; c < columns; c++) json_array_append_new(names, wn_html_string(head[c]));
  for (int64_t r = 0; r < rows; r++) {
    json_t *line = json_array();
    for (int c = 0; c < columns; c++) json_array_append_new(line, page_cell(cells[r * columns + c], c));
    json_array_append_new(lines, line);
  }
  return wn_page_frame(page, what, files,
                       json_pack("{s:s, s:s, s:o, s:o, s:o}", "id", what->id, "kind", "table", "title",
                                 wn_html_string(what->title), "head", names, "rows", lines));
}

/* ---- tiles ---- */

wn_status wn_page_tile(wn_page *page, size_t bytes, struct wn_page_tile **out, int *number) {
  WN_TRY(WN_GROW(page->ctx, "tiles", &page->tiles, page->tile_count, 1, &page->tile_room));
  struct wn_page_tile *tile = &page->tiles[page->tile_count];
  uint8_t *data;
  WN_TRY(WN_ALLOC(page->ctx, "tile", bytes, &data));
  *tile = (struct wn_page_tile){.data = data, .bytes = bytes};
  *number = page->tile_count++;
  *out = tile;
  return WN_OK;
}

/* Replaces a lower triangle by differences down its columns: a sum that grows slowly becomes mostly zeros. */
static void page_differences(uint8_t *data, int64_t T) {
  for (int64_t i = T - 1; i > 0; i--) {
    uint8_t *row = data + i * (i + 1) / 2;
    const uint8_t *above = data + i * (i - 1) / 2;
    for (int64_t j = 0; j < i; j++) row[j] = (uint8_t)(row[j] - above[j]);
  }
}

/* Adds all tiles. Those of texts are quantised to `levels` values; those of means stay as they are. */
static wn_status page_add_tiles(wn_page *page, int levels, struct wn_text *out) {
  for (int n = 0; n < page->tile_count; n++) {
    const struct wn_page_tile *tile = &page->tiles[n];
    uint8_t *q = NULL;
    if (tile->text) {
      WN_TRY(WN_ALLOC(page->ctx, "tile", tile->bytes, &q));
      for (size_t i = 0; i < tile->bytes; i++) q[i] = (uint8_t)((tile->data[i] * (unsigned)levels + 127) / 255);
      if (tile->grows) page_differences(q, tile->T);
    }
    wn_text_add(out, "<script type=\"text/plain\" id=\"tile-%d\">", n);
    const wn_status status = wn_blob_add(page->ctx, out, q ? q : tile->data, tile->bytes);
    wn_text_add(out, "</script>\n");
    wn_free(q);
    WN_TRY(status);
  }
  return out->failed ? wn_page_no_memory(page) : WN_OK;
}

/* Adds the JSON inside a script element, so it must not contain "<". */
static wn_status page_add_json(wn_page *page, int levels, struct wn_text *out) {
  size_t i;
  json_t *text,
      *root = json_pack("{s:O, s:O, s:O}", "figures", page->figures, "texts", page->texts, "means", page->means);
  json_array_foreach(page->texts, i, text) json_object_set_new(text, "levels", json_integer(levels));
  if (root && page->live) json_object_set_new(root, "live", json_pack("{s:s}", "figure", page->live));
  char *s = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(7)) : NULL;
  json_decref(root);
  if (!s) return wn_page_no_memory(page);
  wn_text_add(out, "<script type=\"application/json\" id=\"winnow-data\">");
  for (const char *c = s; *c;) {
    const size_t n = strcspn(c, "<");
    wn_text_add(out, "%.*s%s", (int)n, c, c[n] ? "\\u003c" : "");
    c += n + (c[n] != 0);
  }
  wn_text_add(out, "</script>\n");
  free(s);
  return out->failed ? wn_page_no_memory(page) : WN_OK;
}

/* Appends a long text without formatting. */
static void page_add_raw(struct wn_text *out, const char *s) {
  wn_text_add(out, "%s", s ? s : "");
}

/* Adds the terms that figures use; docs/glossary.md has all terms. */
static void page_add_words(wn_page *page, struct wn_text *t) {
  static const char *const words[][2] = {
      {"attention weight",
       "How much of what a token reads comes from an earlier token, in one layer and head; the weights "
       "of a row sum to 1."},
      {"budget", "The number of tokens whose keys and values a layer may hold."},
      {"evicted", "Dropped from a layer's cache because its budget was full: no later token sees it there."},
      {"F, selected away",
       "In selective attention, what earlier tokens have taken from a token's logit: 1 - exp(-F) is the "
       "part of its weight that is gone. A struck-through token has lost more than half."},
      {"key and value", "What a layer keeps of a token for later ones: the key is compared with, the value is read."},
      {"layer, head", "A model is a stack of layers; the attention of each is done by several heads side by side."},
      {"loss, nats, bits per byte",
       "The mean of minus the logarithm of the probability that the model gave to the right "
       "token, and the same divided by the bytes of the text, in powers of two."},
      {"perplexity", "exp of the loss: among how many equally likely tokens the model is in doubt, as it were."},
      {"policy",
       "The rule by which the token to evict is chosen: window and streaming the oldest, h2o, tova and snapkv the "
       "one that received least attention, selective the one with the largest F, knorm and keydiff choose by keys."},
      {"sink", "A first token that receives weight for no reason of its own."},
      {"span", "How far back a head looks."},
      {"validation", "Text that the model is not trained on."},
  };
  if (page->live || page->sections == 0) return;
  wn_text_add(t, "<h2 id=\"words\">Words</h2>\n<dl class=\"words\">\n");
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    wn_text_add(t, "<div><dt>");
    wn_html_add(t, words[i][0]);
    wn_text_add(t, "</dt><dd>");
    wn_html_add(t, words[i][1]);
    wn_text_add(t, "</dd></div>\n");
  }
  wn_text_add(t, "</dl>\n");
}

static wn_status page_build(wn_page *page, int levels, struct wn_text *t) {
  wn_build_info info;
  WN_TRY(wn_build_info_get(page->ctx, &info));
  page_add_raw(t, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
  wn_text_add(t,
              "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
              "style-src 'unsafe-inline'; img-src data: blob:; connect-src %s; base-uri 'none'; form-action 'none'\">\n"
              "<title>",
              page->live ? "'self'" : "'none'");
  wn_html_add(t, page->title);
  page_add_raw(t, "</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n");
  page_add_raw(t, wn_page_css);
  page_add_raw(t, "</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">To the figures</a>\n<header>\n<h1>");
  wn_html_add(t, page->title);
  page_add_raw(t, "</h1>\n<p class=\"lead\">");
  wn_html_add(t, page->lead);
  page_add_raw(t, "</p>\n");
  if (page->live) page_add_raw(t, "<p id=\"live\" class=\"say\" role=\"status\"></p>\n");
  page_add_raw(t, "<nav aria-label=\"contents\"><ul>\n");
  page_add_raw(t, page->contents.data);
  if (!page->live && page->sections > 0) page_add_raw(t, "<li><a href=\"#words\">Words</a></li>\n");
  page_add_raw(
      t, "</ul></nav>\n<button type=\"button\" id=\"theme\">Colours: as the system</button>\n</header>\n"
         "<noscript><p>The figures of this page are drawn by a script inside it.</p></noscript>\n<main id=\"main\">\n");
  page_add_raw(t, page->body.data);
  page_add_words(page, t);
  wn_text_add(t,
              "</main>\n<footer>Written by winnow %s (%s). Charts: Chart.js, MIT licence, inside this page. Nothing is "
              "loaded from anywhere.</footer>\n",
              info.version, info.commit);
  WN_TRY(page_add_json(page, levels, t));
  WN_TRY(page_add_tiles(page, levels, t));
  page_add_raw(t, "<script>\n");
  page_add_raw(t, wn_page_chart_js);
  page_add_raw(t, "\n</script>\n<script>\n");
  page_add_raw(t, wn_page_js);
  page_add_raw(t, "</script>\n</body>\n</html>\n");
  return t->failed ? wn_page_no_memory(page) : WN_OK;
}

wn_status wn_page_html(wn_page *page, char **out, size_t *bytes) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  WN_CHECK_ARGUMENTS(page->ctx, WN_POINTER(out));
  static const int levels[] = {255, 63, 31, 15, 7, 3};
  *out = NULL;
  for (size_t k = 0; k < sizeof levels / sizeof *levels; k++) {
    struct wn_text t = {0};
    const wn_status status = page_build(page, levels[k], &t);
    if (status != WN_OK) {
      wn_free(t.data);
      return status;
    }
    if (t.bytes <= page->limit) {
      *out = t.data;
      if (bytes) *bytes = t.bytes;
      return WN_OK;
    }
    const size_t found = t.bytes;
    wn_free(t.data);
    if (k + 1 == sizeof levels / sizeof *levels || !json_array_size(page->texts))
      return wn_fail(page->ctx, WN_ERR_ARGUMENT,
                     "page: %zu bytes at the coarsest, %zu are allowed: show fewer tokens or models, or allow more",
                     found, page->limit);
  }
  return WN_OK;
}

wn_status wn_page_save(wn_page *page, const char *path, size_t *bytes) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  WN_CHECK_ARGUMENTS(page->ctx, WN_POINTER(path));
  char *text;
  size_t n;
  WN_TRY(wn_page_html(page, &text, &n));
  const wn_status status = wn_file_write(page->ctx, path, text, n);
  wn_free(text);
  if (bytes) *bytes = n;
  return status;
}
