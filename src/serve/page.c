#include "serve/page.h"

#include "text/declared.h"

static json_t *page_policy(wn_policy policy) {
  const wn_policy_info *info = wn_policy_at(policy);
  json_t *options = json_array();
  const char *name;
  for (int i = 0; (name = wn_policy_option(policy, i, NULL)); i++) json_array_append_new(options, json_string(name));
  return json_pack("{s:s, s:s, s:o}", "name", info->name, "summary", info->summary, "options", options);
}

json_t *wn_page_info(const struct wn_serve_model *m) {
  const wn_model_config *c = wn_model_config_get(m->model);
  const wn_budgets *b = m->budgets->layers > 0 ? m->budgets : NULL;
  double temperature;
  const bool declared = wn_declared_temperature(wn_model_declared(m->model), &temperature);
  json_t *policies = json_array(), *budgets = b ? json_array() : json_null();
  for (wn_policy p = 0; p < wn_policy_count(); p++)
    if (wn_policy_suits(p, &c->attention)) json_array_append_new(policies, page_policy(p));
  for (int64_t l = 0; b && l < b->layers; l++) json_array_append_new(budgets, json_integer(b->tokens[l]));
  return json_pack("{s:s, s:I, s:I, s:I, s:b, s:o, s:s?, s:o, s:o}", "model", m->name, "context",
                   (json_int_t)m->context, "layers", (json_int_t)c->layers, "heads", (json_int_t)c->kv_heads, "chat",
                   m->chat != NULL, "policies", policies, "policy", b ? wn_policy_name(b->policy) : NULL, "budgets",
                   budgets, "temperature", declared ? json_real(temperature) : json_null());
}
