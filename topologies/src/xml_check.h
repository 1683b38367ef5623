/// \file
/// What must hold of XML before a lenient parser reads it.
#pragma once

#include <string>
#include <string_view>

namespace foresail::topologies {

/// One element that holds elements alone, every one closed by its own name, at most 64 deep; no
/// text between them and nothing but comments around. Boost's reader checks no closing names, takes
/// several roots and recurses without a limit. Attributes are its business. Throws
/// Error{InvalidInput} at the line.
void check_xml(std::string_view text, const std::string& file);

}  // namespace foresail::topologies
