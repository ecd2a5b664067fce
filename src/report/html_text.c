/* Texts in a page: what every token sees, layer by layer, and means over many.
 *
 * A layer's matrix is a tile: the lower triangle row by row, one byte per entry. Weights are stored as sqrt(w), which
 * has fine steps for small weights; selections as 1 - exp(-F), the share of a weight that F alone removes. Size: at
 * most L T^2 / 2 bytes of each before compression. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/misuse.h"
#include "report/html.h"

static uint8_t text_byte(double v) {
  return v <= 0 ? 0 : v >= 1 ? 255 : (uint8_t)lround(255 * v);
}

static json_t *text_last(wn_page *page) {
  const size_t n = json_array_size(page->texts);
  return n ? json_array_get(page->texts, n - 1) : NULL;
}

wn_status wn_page_begin_text(wn_page *page, const wn_page_text *t) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  WN_CHECK_ARGUMENTS(page->ctx, WN_POINTER_AS("text", t));
  json_t *tokens = json_array();
  if (t->T < 1 || t->layers < 1 || !t->name || !t->pieces)
    return wn_fail(page->ctx, WN_ERR_ARGUMENT, "page: a text of %lld tokens and %lld layers", (long long)t->T,
                   (long long)t->layers);
  for (int64_t i = 0; i < t->T; i++) json_array_append_new(tokens, wn_html_string(t->pieces[i]));
  json_t *text =
      json_pack("{s:o, s:o, s:I, s:I, s:o, s:f}", "name", wn_html_string(t->name), "tokens", tokens, "layers",
                (json_int_t)t->layers, "headCount", (json_int_t)t->heads, "w", json_array(), "loss", t->loss);
  if (text && t->selective) json_object_set_new(text, "f", json_array());
  if (text && t->budgets) {
    json_t *budgets = json_array();
    for (int64_t l = 0; l < t->layers; l++) {
      json_t *heads = t->budgets->heads > 0 ? json_array() : NULL;
      for (int64_t h = 0; heads && h < t->budgets->heads; h++)
        json_array_append_new(heads, json_integer(wn_budgets_of(t->budgets, l, h)));
      json_array_append_new(budgets, heads ? heads : json_integer(t->budgets->tokens[l]));
    }
    json_object_set_new(text, "budgets", budgets);
    json_object_set_new(text, "policy", json_string(wn_policy_name(t->budgets->policy)));
    json_object_set_new(text, "evictedAt", json_array());
  }
  return wn_page_list(page, page->texts, text);
}

wn_status wn_page_set_loss(wn_page *page, double loss) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  json_t *text = text_last(page);
  if (!text) return wn_fail(page->ctx, WN_ERR_ARGUMENT, "page: no text was begun");
  return json_object_set_new(text, "loss", json_real(loss)) ? wn_page_no_memory(page) : WN_OK;
}

enum mapping { PLAIN, ROOT, GONE /* 1 - exp(-F) */ };

/* Adds the lower triangles of a[count,T,T]. of_text: of what a text's tokens see, whose rows grow where it is GONE. */
static wn_status text_add_triangles(wn_page *page, const float *a, int64_t count, int64_t T, enum mapping by,
                                    bool of_text, json_t *list) {
  struct wn_page_tile *tile;
  int number;
  WN_TRY(wn_page_tile(page, (size_t)(count * T * (T + 1) / 2), &tile, &number));
  tile->text = of_text;
  tile->grows = of_text && by == GONE;
  tile->T = of_text ? T : 0;
  uint8_t *out = tile->data;
  for (int64_t row = 0; row < count * T; row++)
    for (int64_t j = 0, last = row % T; j <= last; j++) {
      const double v = (double)a[row * T + j];
      *out++ = text_byte(by == GONE ? -expm1(-v) : by == ROOT ? sqrt(v) : v);
    }
  return wn_page_list(page, list, json_integer(number));
}

/* For each token the first row that no longer sees it in any group; T: none. */
static json_t *text_evictions(const wn_selection_layer *layer) {
  json_t *out = json_array();
  for (int64_t j = 0; j < layer->T; j++) {
    int64_t last = layer->evicted_at ? 0 : layer->T;
    for (int64_t p = 0; p < layer->groups && layer->evicted_at; p++) {
      const int64_t at = layer->evicted_at[p * layer->T + j];
      if (at > last) last = at;
    }
    json_array_append_new(out, json_integer(last < layer->T ? last : layer->T));
  }
  return out;
}

/* Adds the evictions of groups of heads that evict on their own: [P,T] as 32-bit little-endian numbers, the first row
 * that no longer sees the token; T: none. */
static wn_status text_add_groups(wn_page *page, const wn_selection_layer *layer, json_t *list) {
  struct wn_page_tile *tile;
  int number;
  if (layer->groups < 2) return wn_page_list(page, list, json_null());
  WN_TRY(wn_page_tile(page, (size_t)(layer->groups * layer->T) * 4, &tile, &number));
  for (int64_t k = 0; k < layer->groups * layer->T; k++) {
    const int64_t at = layer->evicted_at[k] < layer->T ? layer->evicted_at[k] : layer->T;
    for (int b = 0; b < 4; b++) tile->data[4 * k + b] = (uint8_t)(at >> 8 * b);
  }
  return wn_page_list(page, list, json_integer(number));
}

wn_status wn_page_add_layer(void *user, const wn_selection_layer *layer) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE_AS("page", user, PAGE));
  WN_CHECK_ARGUMENTS(((wn_page *)user)->ctx, WN_POINTER(layer));
  wn_page *page = user;
  json_t *text = text_last(page);
  if (!text || (int64_t)json_array_size(json_object_get(text, "tokens")) != layer->T ||
      (int64_t)json_array_size(json_object_get(text, "w")) != layer->layer)
    return wn_fail(page->ctx, WN_ERR_ARGUMENT, "page: layer %lld of %lld tokens does not continue the text begun last",
                   (long long)layer->layer, (long long)layer->T);
  WN_TRY(text_add_triangles(page, layer->weights, 1, layer->T, ROOT, true, json_object_get(text, "w")));
  json_t *f = json_object_get(text, "f");
  if (f && !layer->F) return wn_fail(page->ctx, WN_ERR_ARGUMENT, "page: a layer without F of a text with it");
  if (f) WN_TRY(text_add_triangles(page, layer->F, 1, layer->T, GONE, true, f));
  if (layer->head_weights) {
    if (!json_object_get(text, "heads")) json_object_set_new(text, "heads", json_array());
    WN_TRY(text_add_triangles(page, layer->head_weights, layer->heads, layer->T, ROOT, false,
                              json_object_get(text, "heads")));
  }
  json_t *evicted_at = json_object_get(text, "evictedAt");
  if (evicted_at && json_array_append_new(evicted_at, text_evictions(layer))) return wn_page_no_memory(page);
  if (!evicted_at) return WN_OK;
  json_t *groups = json_object_get(text, "evictedAtPerHead");
  if (!groups && layer->groups > 1) { /* layers before this one, if any, evict nothing */
    json_object_set_new(text, "groups", json_integer(layer->groups));
    json_object_set_new(text, "evictedAtPerHead", groups = json_array());
    for (int64_t l = 0; l < layer->layer; l++) json_array_append_new(groups, json_null());
  }
  return groups ? text_add_groups(page, layer, groups) : WN_OK;
}

wn_status wn_page_add_mean(wn_page *page, const char *name, const wn_selection_mean *m) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  WN_CHECK_ARGUMENTS(page->ctx, WN_POINTER(name), WN_POINTER_AS("mean", m));
  json_t *w = json_array(), *f = m->masked ? json_array() : NULL;
  json_t *mean = json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "name", wn_html_string(name), "layers",
                           (json_int_t)m->layers, "T", (json_int_t)m->T, "size", (json_int_t)m->size, "cell",
                           (json_int_t)m->cell, "sequences", (json_int_t)m->sequences, "loss", m->loss, "w", w);
  if (!mean || json_array_append_new(page->means, mean)) return wn_page_no_memory(page);
  if (f) json_object_set_new(mean, "f", f);
  for (int64_t l = 0; l < m->layers; l++) {
    WN_TRY(text_add_triangles(page, m->weights + l * m->size * m->size, 1, m->size, ROOT, false, w));
    if (f) WN_TRY(text_add_triangles(page, m->masked + l * m->size * m->size, 1, m->size, PLAIN, false, f));
  }
  if (!m->last || m->whole == 0) return WN_OK;
  struct wn_page_tile *tile;
  int number;
  WN_TRY(wn_page_tile(page, (size_t)(m->layers * m->T), &tile, &number));
  for (int64_t k = 0; k < m->layers * m->T; k++) tile->data[k] = text_byte((double)m->last[k]);
  json_object_set_new(mean, "last", json_integer(number));
  return WN_OK;
}

/* ---- the same as files ---- */

enum colours { WEIGHT, MASKED, HELD };

/* Palettes as on a light page: white to blue to dark blue, white to orange to dark brown, white to green. */
static void text_palette(enum colours colours, uint8_t out[768]) {
  static const double stops[3][4][3] = {{{255, 255, 255}, {158, 202, 247}, {10, 95, 196}, {4, 32, 74}},
                                        {{255, 255, 255}, {254, 215, 170}, {220, 80, 20}, {90, 20, 5}},
                                        {{255, 255, 255}, {177, 213, 190}, {99, 170, 126}, {21, 128, 61}}};
  for (int v = 0; v < 256; v++) {
    const double x = v / 255.0 * 3;
    const int k = x >= 3 ? 2 : (int)x;
    for (int c = 0; c < 3; c++)
      out[3 * v + c] =
          (uint8_t)lround(stops[colours][k][c] + (x - k) * (stops[colours][k + 1][c] - stops[colours][k][c]));
  }
}

static int64_t text_group_evicted_at(const wn_page *page, const json_t *list, int64_t l, int64_t k) {
  const uint8_t *d = page->tiles[json_integer_value(json_array_get(list, (size_t)l))].data + 4 * k;
  return (int64_t)d[0] | (int64_t)d[1] << 8 | (int64_t)d[2] << 16 | (int64_t)d[3] << 24;
}

/* Pixels that show whether layer l holds token j when row i is read: all, nothing, or the share of its heads. less
 * [n+1]: scratch; how many heads drop the token at a row. */
static void text_held_pixels(const wn_page *page, const json_t *text, int64_t l, int64_t n, int32_t *less,
                             uint8_t *pixels) {
  const json_t *evicted_at = json_array_get(json_object_get(text, "evictedAt"), (size_t)l),
               *each = json_object_get(text, "evictedAtPerHead");
  const bool heads = json_is_integer(json_array_get(each, (size_t)l));
  const int64_t groups = heads ? json_integer_value(json_object_get(text, "groups")) : 1;
  for (int64_t j = 0; j < n; j++) {
    memset(less, 0, (size_t)(n + 1) * sizeof *less);
    for (int64_t p = 0; p < groups; p++)
      less[heads ? text_group_evicted_at(page, each, l, p * n + j)
                 : json_integer_value(json_array_get(evicted_at, (size_t)j))]++;
    int64_t held = groups;
    for (int64_t i = j; i < n; i++) {
      held -= less[i];
      pixels[i * n + j] = (uint8_t)(255 * held / groups);
    }
  }
}

static void text_triangle_pixels(const wn_page *page, const json_t *list, int64_t l, int64_t n, uint8_t *pixels) {
  const uint8_t *data = page->tiles[json_integer_value(json_array_get(list, (size_t)l))].data;
  for (int64_t i = 0; i < n; i++) memcpy(pixels + i * n, data + i * (i + 1) / 2, (size_t)(i + 1));
}

/* Saves the layers' triangles as images side by side, from a list of tiles, or of what a text's layers hold. */
static wn_status text_save_matrices(wn_page *page, const json_t *what, int64_t layers, int64_t n, const char *title,
                                    enum colours colours, const char *path) {
  enum { CELL = 220, GAP = 28 };
  const int64_t columns = layers < 4 ? layers : 4, rows = (layers + 3) / 4;
  uint8_t palette[768];
  struct wn_text t = {0};
  void *pixels, *less;
  const int64_t width = columns * (CELL + 12) + 12, height = rows * (CELL + GAP) + 44;
  text_palette(colours, palette);
  WN_TRY(wn_alloc(page->ctx, "image", (size_t)(n * n), &pixels));
  wn_status status = wn_alloc(page->ctx, "image's rows", (size_t)(n + 1) * sizeof(int32_t), &less);
  if (status != WN_OK) {
    wn_free(pixels);
    return status;
  }
  wn_text_add(&t,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %lld %lld\" width=\"%lld\" height=\"%lld\" "
              "role=\"img\">\n"
              "<style>text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1f2328}</style>\n"
              "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<text x=\"12\" y=\"22\" font-weight=\"600\">",
              (long long)width, (long long)height, (long long)width, (long long)height);
  wn_html_add(&t, title);
  wn_text_add(&t, "</text>\n");
  for (int64_t l = 0; l < layers && status == WN_OK; l++) {
    memset(pixels, 0, (size_t)(n * n));
    if (colours == HELD)
      text_held_pixels(page, what, l, n, less, pixels);
    else
      text_triangle_pixels(page, what, l, n, pixels);
    const long long x = 12 + l % 4 * (CELL + 12), y = 34 + l / 4 * (CELL + GAP);
    wn_text_add(
        &t,
        "<text x=\"%lld\" y=\"%lld\">layer %lld</text>\n<image x=\"%lld\" y=\"%lld\" width=\"%d\" height=\"%d\" "
        "style=\"image-rendering:pixelated\" href=\"",
        x, y + 12, (long long)l, x, y + 18, CELL, CELL);
    status = wn_png_add(page->ctx, &t, pixels, n, n, palette);
    wn_text_add(&t, "\"/>\n");
  }
  wn_text_add(&t, "</svg>\n");
  wn_free(less);
  wn_free(pixels);
  if (status == WN_OK) return wn_text_save(page->ctx, &t, path);
  wn_free(t.data);
  return status;
}

/* CSV columns: layer, token, text, the share of a weight that F removes in the last row, the row that evicts the token
 * from all heads of the layer, and from each head if they evict on their own. */
static wn_status text_save_csv(wn_page *page, const json_t *text, const char *path) {
  struct wn_text t = {0};
  const json_t *tokens = json_object_get(text, "tokens"), *f = json_object_get(text, "f"),
               *evicted_at = json_object_get(text, "evictedAt"), *each = json_object_get(text, "evictedAtPerHead");
  const int64_t groups = json_integer_value(json_object_get(text, "groups"));
  const int64_t T = (int64_t)json_array_size(tokens), L = json_integer_value(json_object_get(text, "layers"));
  wn_text_add(&t, "layer,token,text,masked_in_last_row,evicted_by_row");
  for (int64_t p = 0; p < groups; p++) wn_text_add(&t, ",head_%lld_evicted_by_row", (long long)p);
  wn_text_add(&t, "\n");
  for (int64_t l = 0; l < L; l++)
    for (int64_t j = 0; j < T; j++) {
      wn_text_add(&t, "%lld,%lld,\"", (long long)l, (long long)j);
      for (const char *c = json_string_value(json_array_get(tokens, (size_t)j)); *c; c++)
        wn_text_add(&t, *c == '"' ? "\"\"" : *c == '\n' ? "\\n" : "%c", *c);
      wn_text_add(&t, "\",");
      if (f) {
        const struct wn_page_tile *tile = &page->tiles[json_integer_value(json_array_get(f, (size_t)l))];
        const int64_t last_row = T * (T - 1) / 2;
        wn_text_add(&t, "%.3f", tile->data[last_row + j] / 255.0);
      }
      const int64_t at =
          evicted_at ? json_integer_value(json_array_get(json_array_get(evicted_at, (size_t)l), (size_t)j)) : T;
      if (at < T)
        wn_text_add(&t, ",%lld", (long long)at);
      else
        wn_text_add(&t, ",");
      for (int64_t p = 0; p < groups; p++) {
        const bool evicts = !json_is_null(json_array_get(each, (size_t)l));
        const int64_t its = evicts ? text_group_evicted_at(page, each, l, p * T + j) : T;
        if (its < T)
          wn_text_add(&t, ",%lld", (long long)its);
        else
          wn_text_add(&t, ",");
      }
      wn_text_add(&t, "\n");
    }
  return wn_text_save(page->ctx, &t, path);
}

/* One of the files of a text or a mean: the layers' matrices from `what`. */
static wn_status text_save_svg(wn_page *page, const char *id, const char *ending, const json_t *object,
                               const json_t *what, int64_t n, enum colours colours, const char *told) {
  char path[4096], title[256];
  const int64_t layers = json_integer_value(json_object_get(object, "layers"));
  snprintf(title, sizeof title, "%.100s: %s", json_string_value(json_object_get(object, "name")), told);
  WN_TRY(wn_figure_path(page->ctx, page->folder, id, ending, path, sizeof path));
  return text_save_matrices(page, what, layers, n, title, colours, path);
}

static wn_status text_save_files(wn_page *page) {
  char path[4096], id[64], held[140];
  size_t i;
  json_t *text, *mean;
  json_array_foreach(page->texts, i, text) {
    const int64_t T = (int64_t)json_array_size(json_object_get(text, "tokens"));
    const json_t *f = json_object_get(text, "f");
    snprintf(id, sizeof id, "text-%zu", i);
    WN_TRY(wn_figure_path(page->ctx, page->folder, id, ".csv", path, sizeof path));
    WN_TRY(text_save_csv(page, text, path));
    WN_TRY(text_save_svg(page, id, "-weights.svg", text, json_object_get(text, "w"), T, WEIGHT,
                         "attention weights, mean over heads (square-root scale)"));
    if (json_object_get(text, "evictedAt")) {
      snprintf(held, sizeof held, "held under the budgets, policy %s%s",
               json_string_value(json_object_get(text, "policy")),
               json_object_get(text, "groups") ? ": share of a layer's key-value heads" : "");
      WN_TRY(text_save_svg(page, id, "-held.svg", text, text, T, HELD, held));
    }
    if (f)
      WN_TRY(text_save_svg(page, id, "-F.svg", text, f, T, MASKED,
                           "1 - exp(-F), the part of a weight that selection removes"));
  }
  json_array_foreach(page->means, i, mean) {
    const int64_t n = json_integer_value(json_object_get(mean, "size"));
    const json_t *f = json_object_get(mean, "f");
    snprintf(id, sizeof id, "mean-%zu", i);
    WN_TRY(text_save_svg(page, id, "-weights.svg", mean, json_object_get(mean, "w"), n, WEIGHT,
                         "mean attention weights (square-root scale)"));
    if (f) WN_TRY(text_save_svg(page, id, "-F.svg", mean, f, n, MASKED, "mean of 1 - exp(-F)"));
  }
  return WN_OK;
}

static json_t *text_kind(const char *id, const char *kind) {
  return json_pack("{s:s, s:s}", "id", id, "kind", kind);
}

wn_status wn_page_add_texts(wn_page *page, const char *command) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(page, PAGE));
  const size_t n = json_array_size(page->texts);
  bool selective = false, heads = false, groups = false, held = false;
  size_t i;
  json_t *text;
  json_array_foreach(page->texts, i, text) {
    selective |= json_object_get(text, "f") != NULL;
    heads |= json_object_get(text, "heads") != NULL;
    groups |= json_object_get(text, "groups") != NULL;
    held |= json_object_get(text, "evictedAt") != NULL;
    if (json_array_size(json_object_get(text, "w")) != (size_t)json_integer_value(json_object_get(text, "layers")))
      return wn_fail(page->ctx, WN_ERR_ARGUMENT, "page: text %zu lacks layers", i);
  }
  json_array_foreach(page->means, i, text) selective |= json_object_get(text, "f") != NULL;
  if (n == 0 && json_array_size(page->means) == 0) return WN_OK;
  if (page->folder) WN_TRY(text_save_files(page));
  wn_figure f = {.command = command};
  if (n > 0) {
    f.id = "text";
    f.title = "The text and the context of each token";
    f.about =
        groups ? "For the chosen token and layer: highlight is the attention weight, always the mean over all heads, "
                 "relative to the row's largest; struck through are tokens from which selection F, the mean over heads "
                 "where each has one, takes more than half of the weight. Key-value heads evict on their own: choose "
                 "one, and a gap is a token that it has evicted; with all of them a gap is a token that no head holds, "
                 "an underlined token is held by some. Play steps through the text; the bars below are each layer's "
                 "caches, one per head."
               : "For the chosen token and layer: highlight is the attention weight, mean over heads, relative to the "
                 "row's largest; struck through are tokens from which selection F takes more than half of the weight; "
                 "a gap is a token that the budget has evicted. Play steps through the text; the bars below are each "
                 "layer's cache.";
    WN_TRY(wn_page_frame(page, &f, "text-N.csv", text_kind("text", "text")));
  }
  f.id = "matrices";
  f.title = "Matrices by layer";
  f.about = groups
                ? "Rows are queries, columns are keys. Selection: 1 - exp(-F), the part of a weight that F alone "
                  "removes. Held: tokens that the budget has not evicted, for one key-value head, or the share of "
                  "them that holds it. Weights and selections are means over heads. One text, and where sequences were "
                  "given the mean over them."
                : "Rows are queries, columns are keys. Selection: 1 - exp(-F), the part of a weight that F alone "
                  "removes. Held: tokens that the budget has not evicted. One text, and where sequences were given "
                  "the mean over them.";
  char files[200];
  snprintf(files, sizeof files, "%s%s%s%s%s", n > 0 ? "text-N-weights.svg " : "",
           n > 0 && selective ? "text-N-F.svg " : "", held ? "text-N-held.svg " : "",
           json_array_size(page->means) > 0 ? "mean-N-weights.svg " : "",
           json_array_size(page->means) > 0 && selective ? "mean-N-F.svg" : "");
  WN_TRY(wn_page_frame(page, &f, files, text_kind("matrices", "matrices")));
  if (selective) {
    f.id = "last-row";
    f.title = "What the last row sees";
    f.about =
        "The last token's row of 1 - exp(-F): a band for each layer, a column for each token. Tokens near 1 have been "
        "selected away by all that came before the end.";
    WN_TRY(wn_page_frame(page, &f, "text-N.csv", text_kind("last-row", "last")));
  }
  if (heads) {
    f.id = "heads";
    f.title = "Attention patterns by head";
    f.about = "The chosen layer's attention weights, a matrix for each head.";
    WN_TRY(wn_page_frame(page, &f, NULL, text_kind("heads", "heads")));
  }
  return WN_OK;
}
