# frozen_string_literal: true

module Jobqueue
  module Sidecar
    VERSION = "0.1.0"
  end
end
