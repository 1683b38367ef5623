#include "weight_map.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

constexpr std::string_view kLayers = "layers.";

/// Rows of one global matrix [rows, in] within a tensor that may hold several.
struct Source {
  std::string tensor;
  std::int64_t rows = 0;   ///< of the whole matrix
  std::int64_t first = 0;  ///< in the tensor's output features
};

/// A parameter's name without the layer: "layers.3.qkv.weight" is {3, "qkv", "weight"}.
struct ParameterName {
  int layer = -1;
  std::string module;
  std::string kind;  ///< "weight" or "bias"

  explicit ParameterName(std::string_view name) {
    if (name.starts_with(kLayers)) {
      name.remove_prefix(kLayers.size());
      const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), layer);
      FORESAIL_EXPECT(code == std::errc());
      name.remove_prefix(static_cast<std::size_t>(end - name.data()) + 1);
    }
    const std::size_t dot = name.find('.');
    FORESAIL_EXPECT(dot != std::string_view::npos);
    module = name.substr(0, dot);
    kind = name.substr(dot + 1);
  }
};

std::vector<Source> gpt2_sources(const models::Model& model, const ParameterName& name) {
  const std::string layer = "transformer.h." + std::to_string(name.layer) + ".";
  const auto one = [&](const std::string& tensor, std::int64_t rows) {
    return std::vector<Source>{{tensor + "." + name.kind, rows, 0}};
  };
  const std::int64_t h = model.hidden;
  if (name.module == "words") return one("transformer.wte", model.vocab);
  if (name.module == "positions") return one("transformer.wpe", 0);
  if (name.module == "head") return one("lm_head", model.vocab);
  if (name.module == "final_norm") return one("transformer.ln_f", h);
  if (name.module == "norm1") return one(layer + "ln_1", h);
  if (name.module == "norm2") return one(layer + "ln_2", h);
  if (name.module == "proj") return one(layer + "attn.c_proj", h);
  if (name.module == "fc1") return one(layer + "mlp.c_fc", model.ffn);
  if (name.module == "fc2") return one(layer + "mlp.c_proj", h);
  FORESAIL_EXPECT(name.module == "qkv");
  const std::string fused = layer + "attn.c_attn." + name.kind;
  return {{fused, h, 0}, {fused, h, h}, {fused, h, 2 * h}};
}

std::vector<Source> llama_sources(const models::Model& model, const ParameterName& name) {
  const std::string layer = "model.layers." + std::to_string(name.layer) + ".";
  const auto one = [](const std::string& tensor, std::int64_t rows) {
    return std::vector<Source>{{tensor + ".weight", rows, 0}};
  };
  if (name.module == "words") return one("model.embed_tokens", model.vocab);
  if (name.module == "head") return one("lm_head", model.vocab);
  if (name.module == "final_norm") return one("model.norm", model.hidden);
  if (name.module == "norm1") return one(layer + "input_layernorm", model.hidden);
  if (name.module == "norm2") return one(layer + "post_attention_layernorm", model.hidden);
  if (name.module == "proj") return one(layer + "self_attn.o_proj", model.hidden);
  if (name.module == "fc2") return one(layer + "mlp.down_proj", model.hidden);
  if (name.module == "fc1") {
    return {{layer + "mlp.gate_proj.weight", model.ffn, 0},
            {layer + "mlp.up_proj.weight", model.ffn, 0}};
  }
  FORESAIL_EXPECT(name.module == "qkv");
  const std::int64_t query = model.heads * model.head_size;
  const std::int64_t shared = model.kv_heads * model.head_size;
  return {{layer + "self_attn.q_proj.weight", query, 0},
          {layer + "self_attn.k_proj.weight", shared, 0},
          {layer + "self_attn.v_proj.weight", shared, 0}};
}

bool is_column_parallel(const std::string& module) {
  return module == "qkv" || module == "fc1" || module == "words" || module == "head";
}

bool is_linear(const std::string& module) {
  return module == "qkv" || module == "proj" || module == "fc1" || module == "fc2";
}

/// Elements that follow each other in the tensor, from `to` on; in the parameter they stand
/// `stride` apart, from `from` on.
struct Run {
  std::int64_t from = 0;
  std::int64_t stride = 1;
  std::int64_t to = 0;
  std::int64_t count = 0;
};

std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return value <= 0 ? 0 : (value + by - 1) / by;
}

/// All runs of the part that lie in elements [first, end) of the parameter.
template <class Visit>
void for_each_run(const WeightPart& part, const std::vector<std::int64_t>& shape,
                  std::int64_t first, std::int64_t end, Visit visit) {
  const std::int64_t width = shape.size() == 2 ? shape[1] : 1;
  const std::int64_t columns = part.columns;
  if (part.is_transposed) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t begin = std::max(ceil_div(first - c, columns), part.local_row);
      const std::int64_t behind = std::min(ceil_div(end - c, columns), part.local_row + part.rows);
      if (begin >= behind) continue;
      visit(Run{.from = begin * columns + c,
                .stride = columns,
                .to = (part.column + c) * width + part.row + begin - part.local_row,
                .count = behind - begin});
    }
    return;
  }
  for (std::int64_t r = 0; r < part.rows; ++r) {
    const std::int64_t start = (part.local_row + r) * columns;
    const std::int64_t from = std::max(start, first);
    const std::int64_t behind = std::min(start + columns, end);
    if (from >= behind) continue;
    visit(Run{.from = from,
              .stride = 1,
              .to = (part.row + r) * width + part.column + from - start,
              .count = behind - from});
  }
}

}  // namespace

std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensor_list(
    const models::Model& model, std::int64_t sequence_length) {
  const std::int64_t h = model.hidden;
  const std::int64_t query = model.heads * model.head_size;
  const std::int64_t shared = model.kv_heads * model.head_size;
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> list;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    list.emplace_back(name, std::move(shape));
  };
  const bool is_gpt2 = architecture_of(model) == Architecture::Gpt2;
  add(is_gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", {model.vocab, h});
  if (is_gpt2) {
    add("transformer.wpe.weight",
        {model.max_positions > 0 ? model.max_positions : sequence_length, h});
  }
  for (int i = 0; i < model.layers; ++i) {
    const std::string layer = (is_gpt2 ? "transformer.h." : "model.layers.") + std::to_string(i);
    if (!is_gpt2) {
      add(layer + ".input_layernorm.weight", {h});
      add(layer + ".self_attn.q_proj.weight", {query, h});
      add(layer + ".self_attn.k_proj.weight", {shared, h});
      add(layer + ".self_attn.v_proj.weight", {shared, h});
      add(layer + ".self_attn.o_proj.weight", {h, query});
      add(layer + ".post_attention_layernorm.weight", {h});
      add(layer + ".mlp.gate_proj.weight", {model.ffn, h});
      add(layer + ".mlp.up_proj.weight", {model.ffn, h});
      add(layer + ".mlp.down_proj.weight", {h, model.ffn});
      continue;
    }
    const auto add_conv = [&](const std::string& name, std::int64_t in, std::int64_t out) {
      add(layer + name + ".weight", {in, out});
      add(layer + name + ".bias", {out});
    };
    add(layer + ".ln_1.weight", {h});
    add(layer + ".ln_1.bias", {h});
    add_conv(".attn.c_attn", h, 3 * h);
    add_conv(".attn.c_proj", h, h);
    add(layer + ".ln_2.weight", {h});
    add(layer + ".ln_2.bias", {h});
    add_conv(".mlp.c_fc", h, model.ffn);
    add_conv(".mlp.c_proj", model.ffn, h);
  }
  add(is_gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", {h});
  if (is_gpt2) add("transformer.ln_f.bias", {h});
  if (!model.tied_embeddings) add("lm_head.weight", {model.vocab, h});
  return list;
}

std::vector<WeightPart> weight_parts(const models::Model& model, const Parameter& parameter, int tp,
                                     int tp_rank) {
  const bool is_gpt2 = architecture_of(model) == Architecture::Gpt2;
  const ParameterName name(parameter.name);
  const std::vector<Source> sources =
      is_gpt2 ? gpt2_sources(model, name) : llama_sources(model, name);
  const bool is_matrix = parameter.value.dim() == 2;
  const std::int64_t own_rows = parameter.value.size(0);
  std::vector<WeightPart> parts;
  std::int64_t local = 0;
  for (const Source& source : sources) {
    WeightPart part;
    part.tensor = source.tensor;
    part.local_row = local;
    part.columns = is_matrix ? parameter.value.size(1) : 1;
    part.is_transposed = is_gpt2 && is_matrix && is_linear(name.module);
    const bool is_split = is_column_parallel(name.module) && parameter.spread == Spread::Sharded;
    // The vocabulary is padded before it is split, so its parts are those of the parameter.
    const bool is_vocabulary = name.module == "words" || name.module == "head";
    part.rows = is_split && !is_vocabulary ? source.rows / tp : own_rows;
    part.row = source.first + (is_split ? tp_rank * part.rows : 0);
    local += part.rows;
    if (is_vocabulary) {
      part.rows = std::clamp<std::int64_t>(source.rows - part.row, 0, part.rows);
    }
    if (is_matrix && !is_split && parameter.spread == Spread::Sharded) {
      part.column = tp_rank * part.columns;
    }
    parts.push_back(std::move(part));
  }
  FORESAIL_EXPECT(local == own_rows);
  return parts;
}

void write_part(const std::filesystem::path& path, const SafetensorsHead& head,
                const std::vector<WeightPart>& parts, std::int64_t first, const float* values,
                std::int64_t count) {
  const auto fail = [&] {
    throw Error(errno == ENOENT ? ErrorCode::NotFound : ErrorCode::Io,
                path.string() + ": " + std::strerror(errno));
  };
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) fail();
  bool is_written = true;
  std::vector<float> gathered;
  for (const WeightPart& part : parts) {
    const StoredTensor& tensor = head.tensors.at(part.tensor);
    for_each_run(part, tensor.shape, first, first + count, [&](const Run& run) {
      const float* source = values + (run.from - first);
      gathered.resize(static_cast<std::size_t>(run.count));
      for (std::int64_t i = 0; i < run.count; ++i) {
        gathered[static_cast<std::size_t>(i)] = source[i * run.stride];
      }
      const std::size_t bytes = gathered.size() * sizeof(float);
      const auto at = tensor.offset + run.to * static_cast<std::int64_t>(sizeof(float));
      const ssize_t done = ::pwrite(file, gathered.data(), bytes, at);
      is_written = is_written && done == static_cast<ssize_t>(bytes);
    });
  }
  if (::close(file) != 0 || !is_written) fail();
}

void read_parts(const Safetensors& file, const std::vector<WeightPart>& parts, float* values) {
  std::vector<float> gathered;
  for (const WeightPart& part : parts) {
    std::string name = part.tensor;
    if (!file.tensors().contains(name)) name = name.substr(name.find('.') + 1);
    const StoredTensor& tensor = file.tensors().at(name);
    const std::int64_t end = (part.local_row + part.rows) * part.columns;
    for_each_run(part, tensor.shape, 0, end, [&](const Run& run) {
      gathered.resize(static_cast<std::size_t>(run.count));
      file.read(tensor, run.to, gathered);
      for (std::int64_t i = 0; i < run.count; ++i) {
        values[run.from + i * run.stride] = gathered[static_cast<std::size_t>(i)];
      }
    });
  }
}

}  // namespace foresail::runtime
