/// \file
/// Published nccl-tests tables against predictions, and the two constants per generation of GPU
/// that are fitted on the one-node tables.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "foresail/scenarios/collective_sweep.h"
#include "foresail/topologies/cluster.h"

namespace foresail::scenarios {

/// One published table, and the cluster that is assumed to stand behind it.
struct PublishedTable {
  std::string id;
  bool is_fitted = false;  ///< constants may be chosen by it
  topologies::Cluster::Options cluster;
  topologies::NetworkOptions network;
  Operation operation = Operation::AllReduce;
  struct Row {
    Bytes size;
    double time_us = 0, bus_bandwidth = 0;
  };
  /// Without those below 0.1 GB/s of bus bandwidth, where two digits say nothing. Where the table
  /// states for how many ranks its bus bandwidth holds, times follow from it.
  std::vector<Row> rows;
};

/// `tables`: scenarios/catalogue/collectives.yaml; `rows`: published/collectives.yaml. Throws
/// Error{InvalidInput}.
std::vector<PublishedTable> load_tables(const std::filesystem::path& tables,
                                        const std::filesystem::path& rows);

struct TableErrors {
  std::string id;
  bool is_fitted = false;
  std::vector<double> large;  ///< predicted / measured - 1 by row, sizes from 1 MiB on
  std::vector<double> small;
  Sweep predicted;
};
double mean_magnitude(const std::vector<double>& errors);
TableErrors predict_table(const PublishedTable& table);
/// Table for people, and the means over fitted and blind tables.
std::string to_text(const std::vector<TableErrors>& tables);

struct NcclFit {
  std::string device;  ///< of the table's cluster
  topologies::Generation generation = topologies::Generation::Ampere;
  std::string table;
  double launch_us = 0, latency_factor = 1;
  std::size_t rows = 0;
  double mean_error = 0;  ///< of the table, with these constants
};
/// Least squares of log(predicted / measured) over one table, each row with a deviation of 15 %,
/// and a log-normal prior of 20 % about 1 for the latency factor: the launch overhead and the
/// factor move small sizes alike, so that one table hardly tells them apart. Grid search.
NcclFit fit_table(const PublishedTable& table);
/// Writes launch_us, latency_factor and provenance into the `nccl` mapping of every device of the
/// generation in `folder`; nothing else of the files changes.
void write_nccl(const NcclFit& fit, const std::filesystem::path& folder);

}  // namespace foresail::scenarios
