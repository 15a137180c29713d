# frozen_string_literal: true

require "yaml"

# What the API server checks first of a custom resource: fields, types, words and what is required.
class StructuralSchema
  def self.of_jobqueue(path)
    new(YAML.load_file(path).dig("spec", "versions", 0, "schema", "openAPIV3Schema"))
  end

  def initialize(schema)
    @schema = schema
  end

  def problems(object)
    check(object.slice("spec"), @schema, "")
  end

  private

  def check(value, schema, path)
    return [] if schema["x-kubernetes-preserve-unknown-fields"] && !schema["properties"]
    return ["#{path}: #{value.inspect} is none of #{schema["enum"].compact.join(", ")}"] if wrong_word?(value, schema)

    case value
    when Hash then fields(value, schema, path)
    when Array
      return ["#{path}: is no list"] unless schema["type"] == "array"

      value.each_with_index.flat_map { |item, index| check(item, schema["items"], "#{path}[#{index}]") }
    else right_type?(value, schema) ? [] : ["#{path}: #{value.inspect} is no #{schema["type"]}"]
    end
  end

  def fields(value, schema, path)
    prefix = path.empty? ? "" : "#{path}."
    properties = schema["properties"] || {}
    missing = ((schema["required"] || []) - value.keys).map { |name| "#{prefix}#{name}: required" }
    missing + value.flat_map do |name, field|
      known = properties[name] || schema["additionalProperties"]
      known.is_a?(Hash) ? check(field, known, prefix + name) : ["#{prefix}#{name}: unknown field"]
    end
  end

  def wrong_word?(value, schema)
    schema["enum"] && !schema["enum"].include?(value)
  end

  def right_type?(value, schema)
    return true if schema["x-kubernetes-int-or-string"]

    { "string" => String, "integer" => Integer, "boolean" => [true, false] }
      .then { |types| Array(types[schema["type"]]).any? { |type| type === value } } # rubocop:disable Style/CaseEquality
  end
end
