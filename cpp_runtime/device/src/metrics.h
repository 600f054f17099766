#pragma once

#include <optional>
#include <string>

#include "site.h"

namespace edgepack::device {

/// `edgepack-device metrics`: what is installed here and how it is, for Prometheus (text format
/// 0.0.4), with what the app says in its own file, if there is one. Only reads.
std::string MetricsText(const Site& site, const std::optional<std::string>& app_file);

/// The name of the model here, for labels and names of files.
std::string ModelName(const Site& site);

/// Writes that text to `folder`/edgepack-<model>.prom, for node_exporter's textfile collector: an
/// old one or a new one, whole. Returns the file's path.
std::string WriteTextfile(const Site& site, const std::optional<std::string>& app_file,
                          const std::string& folder);

/// Has systemd's user instance write that file every 30 s: makes
/// edgepack-metrics-<model>.service and .timer in `units`, enabled. Returns what to do next.
std::string WriteTimer(const Site& site, const std::optional<std::string>& app_file,
                       const std::string& folder, const std::string& units,
                       const std::string& tool);

}  // namespace edgepack::device
