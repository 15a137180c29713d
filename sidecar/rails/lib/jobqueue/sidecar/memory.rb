# frozen_string_literal: true

require "etc"

module Jobqueue
  module Sidecar
    # How much memory this process holds, as the kernel counts it.
    module Memory
      PAGE = Etc.sysconf(Etc::SC_PAGESIZE)

      module_function

      # Resident bytes; nil where there is no /proc.
      def resident(statm = "/proc/self/statm")
        File.read(statm).split[1].to_i * PAGE
      rescue SystemCallError
        nil
      end
    end
  end
end
