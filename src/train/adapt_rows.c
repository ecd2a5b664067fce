/* Which of a model's parameters learn. Frozen parameters have neither gradients nor optimizer state. The products for
 * their gradients are not computed: with only the attention learning that is a third of a step's products. */
#include "train/adapt_rows.h"

#include <stdio.h>

static bool is_attention(const char *name) {
  return strstr(name, "layers.") && (strstr(name, ".attn.") || strstr(name, ".cross."));
}

/* Does a pattern of `n` characters, where * matches any text, match the name? */
static bool matches(const char *pattern, size_t n, const char *name) {
  const char *star = NULL, *back = NULL, *end = pattern + n;
  while (*name) {
    if (pattern < end && *pattern == '*') {
      star = pattern++;
      back = name;
    } else if (pattern < end && *pattern == *name) {
      pattern++, name++;
    } else if (star) {
      pattern = star + 1;
      name = ++back;
    } else {
      return false;
    }
  }
  while (pattern < end && *pattern == '*') pattern++;
  return pattern == end;
}

/* Every pattern must match a tensor: with a misspelt one a tensor would learn that should not. */
static wn_status freeze(wn_context *ctx, const struct wn_model *model, const char *patterns, bool *frozen) {
  for (const char *p = patterns; *p;) {
    const size_t n = strcspn(p, ",");
    bool any = false;
    for (int i = 0; i < model->table.count; i++) {
      if (!matches(p, n, model->table.rows[i].name)) continue;
      frozen[i] = true;
      any = true;
    }
    if (!any)
      return wn_fail(ctx, WN_ERR_CONFIG, "train.freeze: \"%.*s\" is the name of no tensor (winnow info lists them)",
                     (int)n, p);
    p += n + (p[n] == ',');
  }
  return WN_OK;
}

static void add_lora(struct wn_adapt_rows *r) {
  for (int i = 0; i < r->lora.count; i++) {
    const struct wn_lora_map *m = &r->lora.maps[i];
    for (int k = 0; k < 2; k++) {
      struct wn_optimizer_row row = {.p = k ? m->b : m->a,
                                     .grad_at = k ? m->b_at : m->a_at,
                                     .count = (size_t)(r->lora.rank * (k ? m->rows : m->columns)),
                                     .ndim = 2,
                                     .shape = {k ? m->rows : r->lora.rank, k ? r->lora.rank : m->columns},
                                     .decay = true,
                                     .lr = 1};
      snprintf(row.name, sizeof row.name, "%s.lora_%c", m->name, k ? 'b' : 'a');
      r->rows[r->count++] = row;
    }
  }
}

static wn_status adapt_choose(wn_context *ctx, struct wn_model *model, const wn_train_config *config, bool *learns,
                              bool *frozen, struct wn_adapt_rows *r) {
  const struct wn_param_table *table = &model->table;
  WN_TRY(freeze(ctx, model, config->freeze, frozen));
  for (int i = 0; i < table->count; i++) {
    const struct wn_param *row = &table->rows[i];
    learns[i] =
        config->tune == WN_TUNE_ALL || row->mechanism || (config->tune == WN_TUNE_ATTENTION && is_attention(row->name));
    if (row->scheduled || frozen[i]) learns[i] = false;
  }
  WN_TRY(WN_ALLOC(ctx, "places of gradients", table->count, &r->grad_at));
  /* Low-rank updates come first: then it is known which projections have them. */
  r->has_lora = config->tune == WN_TUNE_LORA;
  if (r->has_lora)
    WN_TRY(
        wn_lora_init(ctx, model, config->lora.rank, config->lora.alpha, config->seed, frozen, &r->gradients, &r->lora));
  WN_TRY(WN_ALLOC(ctx, "tensors that learn", table->count + 2 * r->lora.count, &r->rows));
  for (int i = 0; i < table->count; i++) {
    const bool through = r->has_lora && wn_lora_has(&r->lora, i);
    r->grad_at[i] = WN_NO_GRADIENT;
    if (!learns[i] && !through) continue;
    r->grad_at[i] = r->gradients;
    r->gradients += (table->rows[i].count + 15) & ~(size_t)15;
    if (!learns[i]) continue;
    struct wn_optimizer_row row = wn_optimizer_row_of(model, i);
    row.grad_at = r->grad_at[i];
    if (table->rows[i].mechanism) row.lr = config->lr_mechanisms;
    r->rows[r->count++] = row;
  }
  add_lora(r);
  return WN_OK;
}

wn_status wn_adapt_rows_init(wn_context *ctx, struct wn_model *model, const wn_train_config *config,
                             struct wn_adapt_rows *r) {
  void *learns; /* and which tensors are frozen */
  memset(r, 0, sizeof *r);
  WN_TRY(wn_alloc(ctx, "what learns", 2 * (size_t)model->table.count * sizeof(bool), &learns));
  const wn_status status = adapt_choose(ctx, model, config, learns, (bool *)learns + model->table.count, r);
  wn_free(learns);
  return status;
}

void wn_adapt_rows_clear(struct wn_adapt_rows *r) {
  wn_lora_clear(&r->lora);
  wn_free(r->rows);
  wn_free(r->grad_at);
  memset(r, 0, sizeof *r);
}

double wn_adapt_strength(const wn_train_config *config, int64_t step) {
  int64_t over = config->strength_steps > 0 ? config->strength_steps : config->steps / 2;
  if (over < 1) over = 1;
  return step >= over ? 1 : (double)step / (double)over;
}

/* Sets the elements of a tensor that are above `ceiling`. */
static wn_status cut(struct wn_model *model, int row, double ceiling, double value) {
  const struct wn_param *p = &model->table.rows[row];
  const struct wn_memory *memory = model->backend->memory;
  const size_t bytes = p->count * wn_dtype_size(model->dtype);
  void *array = wn_element(model->params, (int64_t)p->offset, model->dtype), *opened;
  bool changed = false;
  WN_TRY(wn_memory_open(model->ctx, memory, p->name, array, bytes, &opened));
  for (int64_t k = 0; k < (int64_t)p->count; k++) {
    if (wn_number(opened, k, model->dtype) <= ceiling) continue;
    wn_number_set(opened, k, model->dtype, value);
    changed = true;
  }
  return wn_memory_close(model->ctx, memory, array, bytes, opened, changed);
}

wn_status wn_adapt_strength_set(struct wn_model *model, const wn_train_config *config, const struct wn_adapt_rows *rows,
                                int64_t step) {
  const double strength = wn_adapt_strength(config, step);
  const bool falls = config->adapt && wn_adapt_strength(config, step - 1) < 1;
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_param *row = &model->table.rows[i];
    const double ceiling = row->neutral + strength * (row->adapted - row->neutral);
    if (row->scheduled)
      WN_TRY(cut(model, i, -INFINITY, strength));
    else if (falls && row->adapted < row->neutral && rows->grad_at[i] != WN_NO_GRADIENT)
      WN_TRY(cut(model, i, ceiling, ceiling));
  }
  return WN_OK;
}
